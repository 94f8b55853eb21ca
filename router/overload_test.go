package router

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// A file that is full is a store that is away for those who write: reads go on,
// and what has no store too. Retention makes room, and nobody starts anything.
func TestFullFileIsUnavailableUntilRetentionMakesRoom(t *testing.T) {
	cfg := sqlite.Default()
	cfg.Path, cfg.MaxBytes = filepath.Join(t.TempDir(), "history.db"), 1<<20
	store, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := start(t, store, func(c *Config) { c.RetryFor = 100 * time.Millisecond })
	acked, big := uint64(0), strings.Repeat("x", 50<<10)
	publish := func() error {
		placed, err := n.publishErr("chat:a", fmt.Sprintf(`"%d%s"`, acked+1, big), "")
		if err == nil {
			acked++
			if placed.Offset != acked {
				t.Fatalf("placed at %d, want %d", placed.Offset, acked)
			}
		}
		return err
	}
	for err == nil {
		if err = publish(); acked > 100 {
			t.Fatal("the file is never full")
		}
	}
	for range 3 {
		began := time.Now()
		if status.Code(err) != codes.Unavailable || detail[*errdetails.RetryInfo](err) == nil {
			t.Fatalf("with a full file: %v, want UNAVAILABLE with RetryInfo", err)
		}
		if err = publish(); err == nil {
			t.Fatal("a full file took an event that it has no room for")
		}
		if took := time.Since(began); took > n.cfg.API.PublishDeadline {
			t.Errorf("the answer took %v", took)
		}
	}
	n.publish1("brief:x", `1`, "")
	page, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "chat:a"})
	if err != nil || len(page.Events) == 0 {
		t.Fatalf("reading a full file: %v, %v", page, err)
	}
	if a := n.sync().ask(position("chat:a", 1, acked-1)); a.Status != gatewayv1.Status_STATUS_OK || !a.Recovered || len(a.Events) != 1 {
		t.Errorf("an edge that asks: %v, with %d events", a.Status, len(a.Events))
	}

	if _, err := store.Trim(testContext(t), []history.Retention{{Namespace: "chat", Size: 2}}, 0, 1000); err != nil {
		t.Fatal(err)
	}
	eventually(t, "publishing works again", func() bool { return publish() == nil })
	for i, e := range n.stored("chat:a") {
		if want := acked - 2 + uint64(i); e.Offset != want || !bytes.HasPrefix(e.Data, fmt.Appendf(nil, `"%dx`, want)) {
			t.Errorf("stored %.10s at %d, want %d", e.Data, e.Offset, want)
		}
	}
}

// hang makes appends wait until the test lets them go.
func (n *node) hang() (release func()) {
	gate := make(chan struct{})
	n.store.onAppend(func(ctx context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		select {
		case <-gate:
			return next()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	return sync.OnceFunc(func() { close(gate) })
}

// A slow store holds up nobody but those who need it, not even in one call.
func TestOthersGoOnWhileTheStoreHangs(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.API.PublishDeadline, c.StoreTimeout = 500*time.Millisecond, 20*time.Second })
	n.publish1("chat:a", `1`, "")
	n.publish1("chat:b", `1`, "")
	release := n.hang()
	defer release()
	waiting := make(chan error, 1)
	go func() { // ends at its deadline; waited for below
		_, err := n.publishErr("chat:a", `2`, "")
		waiting <- err
	}()
	eventually(t, "the commit hangs", func() bool { appends, _, _ := n.store.counts(); return appends > 2 })
	for i := range 20 {
		if placed := n.publish1("brief:x", `1`, ""); placed.Offset != uint64(i+1) {
			t.Fatalf("placed at %v", placed)
		}
	}
	e := n.sync()
	if a := e.ask(position("chat:b", 2, 0)); !a.Recovered || len(a.Events) != 1 {
		t.Errorf("a tail while the store hangs: %v", a)
	}
	began := time.Now()
	response, err := n.pub.PublishBatch(testContext(t), &routerv1.PublishBatchRequest{
		Publications: []*routerv1.Publication{event("chat:b", `2`, ""), event("brief:y", `1`, "")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second { // the store's own is 20 s
		t.Errorf("the batch took %v", took)
	}
	if f := response.Results[0].GetFailure(); codes.Code(f.GetCode()) != codes.Unavailable || f.GetRetryAfterMs() == 0 {
		t.Errorf("durable: %v, want UNAVAILABLE and when to come again", response.Results[0])
	}
	if placed := response.Results[1].GetPlaced(); placed.GetOffset() != 1 {
		t.Errorf("without a store: %v", response.Results[1])
	}
	if err := <-waiting; status.Code(err) != codes.Unavailable {
		t.Errorf("in the commit: %v", err)
	}
	release()
	n.store.onAppend(nil)
	eventually(t, "publishing works again", func() bool {
		_, err := n.publishErr("chat:b", `3`, "")
		return err == nil
	})
}

// Publishers are refused, and told when to come again, before memory goes: with a
// store that hangs, sixteen times the queue's bytes are refused, none of it
// is kept while the calls that brought it wait, and one channel has a quarter.
func TestPublishersAreRefusedBeforeMemoryGoes(t *testing.T) {
	const queue, each, batch = 2 << 20, 16 << 10, 64
	n := start(t, nil, func(c *Config) {
		c.QueueBytes, c.API.PublishDeadline, c.StoreTimeout = queue, 15*time.Second, 15*time.Second
	})
	n.publish1("chat:first", `1`, "")
	release := n.hang()
	defer release()
	overflows := func() float64 { return n.labelled("spillway_router_publishes_total", "overflow") }
	data := `"` + strings.Repeat("x", each) + `"` // one for all that clients send
	send := func(name func(int) string) *routerv1.PublishBatchResponse {
		request := &routerv1.PublishBatchRequest{}
		for i := range batch {
			request.Publications = append(request.Publications, event(name(i), data, ""))
		}
		response, err := n.pub.PublishBatch(testContext(t), request)
		if err != nil {
			t.Error(err)
		}
		return response
	}
	before := living()
	var mu sync.Mutex
	var taken, refused, channelTaken int
	count := func(response *routerv1.PublishBatchResponse, one bool) {
		mu.Lock()
		defer mu.Unlock()
		for _, result := range response.GetResults() {
			f := result.GetFailure()
			switch {
			case result.GetPlaced() != nil:
				taken++
				if one {
					channelTaken++
				}
			case codes.Code(f.GetCode()) == codes.ResourceExhausted && f.GetRetryAfterMs() > 0:
				refused++
			default:
				t.Errorf("neither stored nor refused with a time: %v", result)
			}
		}
	}
	var calls sync.WaitGroup
	const ofOne, ofMany = 4, 28
	for range ofOne {
		calls.Go(func() { count(send(func(int) string { return "chat:one" }), true) })
	}
	eventually(t, "a channel is full", func() bool { return waitingBytes(n.Router) > queue/4-2*each })
	for c := range ofMany {
		calls.Go(func() { count(send(func(i int) string { return fmt.Sprintf("chat:%d-%d", c, i) }), false) })
	}
	most := ofOne*batch + ofMany*batch - queue/each
	eventually(t, "all others are refused", func() bool { return overflows() >= float64(most) })
	if got := waitingBytes(n.Router); got > queue {
		t.Errorf("%d bytes are queued, at most %d may be", got, queue)
	}
	// what is queued, and small change
	grown := living() - before
	if grown > queue*3/2 {
		t.Errorf("the heap has grown by %d KiB with a queue of %d", grown>>10, queue>>10)
	}
	release()
	calls.Wait()
	t.Logf("%d taken, %d of one channel, %d refused; the heap grew by %d KiB with a queue of %d", taken, channelTaken, refused, grown>>10, queue>>10)
	if channelTaken*each > queue/4+n.cfg.BatchBytes || channelTaken == 0 || taken*each > queue { // a quarter, and what a commit has
		t.Errorf("%d events were taken, %d of one channel", taken, channelTaken)
	}
	if events, bytes := n.table.Waiting(); events != 0 || bytes != 0 {
		t.Errorf("the queue accounts %d events, %d bytes when empty", events, bytes)
	}
}
