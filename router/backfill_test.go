package router

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/namespace"
)

// Whatever comes back at once, the store has at most so many reads, and each question
// is answered.
func TestReadsInTheStoreAreCapped(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.Reads, c.ReadRanges = 3, 10 })
	const channels = 300
	var asks []*gatewayv1.Ask
	for i := range channels {
		channel := fmt.Sprint("chat:", i)
		epoch := n.fill(channel, 2)
		n.forget(channel)
		asks = append(asks, position(channel, epoch, 1))
	}
	var running, peak atomic.Int64
	full, release := make(chan struct{}), make(chan struct{})
	n.store.onRead(func(context.Context, []history.Range) error {
		now := running.Add(1)
		defer running.Add(-1)
		for most := peak.Load(); now > most && !peak.CompareAndSwap(most, now); {
			most = peak.Load()
		}
		if now == 3 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-release
		return nil
	})
	go func() { // ends when the third read is there
		<-full
		close(release)
	}()
	for _, a := range n.sync().askAll(asks...) {
		if !a.Recovered || offsetsOf(a.Events) != "[2]" {
			t.Fatalf("answer %v", a)
		}
	}
	if peak.Load() != 3 || n.counter("spillway_router_peak_store_reads") != 3 {
		t.Errorf("%d reads at once, told as %v, the cap is 3", peak.Load(), n.counter("spillway_router_peak_store_reads"))
	}
}

// Who asks while a read of the same is in the store shares the next one: an answer is
// never older than its question, and never are two reads of a key there at once.
func TestQuestionsDuringAReadShareTheNextOne(t *testing.T) {
	n := start(t, nil, nil)
	epoch := n.fill("chat:a", 3)
	n.forget("chat:a")
	var started atomic.Int64
	in, release := make(chan struct{}), make(chan struct{})
	n.store.onRead(func(context.Context, []history.Range) error {
		if started.Add(1) == 1 {
			close(in)
			<-release
		}
		return nil
	})
	first := n.sync()
	ask := position("chat:a", epoch, 1)
	ask.Id = 1
	if err := first.stream.Send(&gatewayv1.SyncRequest{Edge: "e1", Asks: []*gatewayv1.Ask{ask}}); err != nil {
		t.Fatal(err)
	}
	<-in
	other := n.sync()
	const many = 200
	for i := range many {
		a := position("chat:a", epoch, 1)
		a.Id = uint64(i + 1)
		if err := other.stream.Send(&gatewayv1.SyncRequest{Edge: "e2", Asks: []*gatewayv1.Ask{a}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all wait", func() bool { return n.backfill.Depth() == many })
	if s := started.Load(); s != 1 {
		t.Errorf("%d reads of one range are in the store", s)
	}
	close(release)
	for got := 0; got < many; {
		response, err := other.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range response.Answers {
			if got++; !a.Recovered || offsetsOf(a.Events) != "[2 3]" {
				t.Fatalf("answer %v", a)
			}
		}
	}
	if s := started.Load(); s != 2 {
		t.Errorf("%d reads for %d questions of which one came first, want 2", s, many+1)
	}
}

// What holds in memory holds with a real database.
func TestBackfillFromADatabase(t *testing.T) {
	dsn := pgtest.Start(t, pgtest.NoSync).NewDatabase(t)
	cfg := postgres.Default()
	cfg.DSN = dsn
	store, err := postgres.Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := start(t, store, func(c *Config) {
		c.Namespaces["short"] = namespace.Namespace{HistorySize: 4, Recover: true, Subscribe: namespace.Everyone}
	})
	t.Run("any position is answered", func(t *testing.T) { n.anyPosition(t) })
	t.Run("a late read is cancelled", func(t *testing.T) { n.lateRead(t, dsn) })
}

// Each position is answered, and recovered only if nothing is missing between it and
// the head.
func (n *node) anyPosition(t *testing.T) {
	epoch := n.fill("short:a", 10)
	if err := n.retention.Round(testContext(t)); err != nil {
		t.Fatal(err)
	}
	e := n.sync()
	for name, c := range map[string]struct {
		epoch, offset uint64
		events        int // -1: not recovered
	}{
		"head": {epoch, 10, 0}, "one behind": {epoch, 9, 1}, "oldest kept": {epoch, 6, 4},
		"one older than retention": {epoch, 5, -1}, "zero": {epoch, 0, -1},
		"one ahead": {epoch, 11, -1}, "the largest": {epoch, wire.MaxOffset, -1}, "past the largest": {epoch, 1<<64 - 1, -1},
		"epoch 0": {0, 10, -1}, "a later epoch": {epoch + 1, 10, -1}, "the last epoch": {1<<64 - 1, 9, -1},
	} {
		n.forget("short:a")
		a := e.ask(position("short:a", c.epoch, c.offset))
		if a.Status != gatewayv1.Status_STATUS_OK || a.Recovered != (c.events >= 0) || a.Head != 10 || a.Epoch != epoch {
			t.Errorf("%s: %v", name, a)
		}
		if len(a.Events) != max(c.events, 0) {
			t.Errorf("%s: %d events, want %d", name, len(a.Events), c.events)
		}
	}
}

// A read that takes longer than somebody waits does not go on in the database for
// nobody, and its slot and connection serve the next.
func (n *node) lateRead(t *testing.T, dsn string) {
	epoch := n.fill("chat:a", 3)
	n.forget("chat:a")
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	lock, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(ctx, "LOCK TABLE history_channels IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	e := n.sync()
	ask := position("chat:a", epoch, 1)
	ask.DeadlineMs = 300
	if a := e.ask(ask); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE || a.RetryAfterMs == 0 {
		t.Errorf("the table is locked, and the answer is %v", a)
	}
	waiting := -1
	eventually(t, "no read waits in the database any more", func() bool {
		err := lock.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		return err == nil && waiting == 0
	})
	if err := lock.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if a := e.ask(position("chat:a", epoch, 1)); !a.Recovered || offsetsOf(a.Events) != "[2 3]" {
		t.Errorf("when it is open again: %v", a)
	}
}

// Nothing is read for who has left: neither for an edge whose stream has ended, nor for a
// backend that has hung up.
func TestNothingIsReadForWhoHasLeft(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.Reads, c.API.ReadDeadline = 1, 15*time.Second })
	const channels = 50
	for i := range channels {
		channel := fmt.Sprint("chat:", i)
		n.fill(channel, 2)
		n.forget(channel)
	}
	in, release := make(chan struct{}), make(chan struct{})
	var reads atomic.Int64
	n.store.onRead(func(context.Context, []history.Range) error {
		if reads.Add(1) == 1 {
			close(in)
			<-release
		}
		return nil
	})
	stays := n.sync()
	answered := make(chan *gatewayv1.Answer, 1)
	go func() { answered <- stays.ask(&gatewayv1.Ask{Channel: "chat:first", Last: 1}) }() // ends with the answer, below
	<-in
	ctx, leave := context.WithCancel(testContext(t))
	defer leave()
	stream, err := n.edge.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	request := &gatewayv1.SyncRequest{Edge: "e2"}
	for i := range channels - 1 {
		request.Asks = append(request.Asks, &gatewayv1.Ask{Id: uint64(i + 1), Channel: fmt.Sprint("chat:", i), Last: 2})
	}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	hungUp := make(chan error, 1)
	go func() { // ends with the context, below
		_, err := n.hist.ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: fmt.Sprint("chat:", channels-1)})
		hungUp <- err
	}()
	eventually(t, "all wait", func() bool { return n.backfill.Depth() == channels })
	leave()
	<-hungUp
	eventually(t, "the router has heard that the edge is gone", func() bool { return n.api.Edges() == 1 })
	close(release)
	if a := <-answered; a.Status != gatewayv1.Status_STATUS_OK {
		t.Errorf("who stays: %v", a)
	}
	eventually(t, "nobody waits", func() bool { return n.backfill.Depth() == 0 })
	if got := reads.Load(); got != 1 {
		t.Errorf("%d reads of the store, 1 for who stayed", got)
	}
}
