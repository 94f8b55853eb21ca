package router

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
)

func (n *node) fill(channel string, events int) (epoch uint64) {
	n.t.Helper()
	var in []*routerv1.Publication
	for i := range events {
		in = append(in, event(channel, fmt.Sprint(i+1), ""))
	}
	response, err := n.pub.PublishBatch(testContext(n.t), &routerv1.PublishBatchRequest{Publications: in})
	if err != nil || response.Results[events-1].GetPlaced() == nil {
		n.t.Fatalf("fill: %v %v", err, response)
	}
	return n.state(channel).Epoch
}

// While the tail is warm, catching up costs the store nothing.
func TestWarmTailAnswersWithoutTheStore(t *testing.T) {
	n := start(t, nil, nil)
	epoch := n.fill("chat:a", 10)
	_, heads, reads := n.store.counts()
	e := n.sync()
	a := e.ask(position("chat:a", epoch, 7))
	if !a.Recovered || a.Head != 10 || offsetsOf(a.Events) != "[8 9 10]" || a.More || !a.HasHistory {
		t.Errorf("after 7: %v", a)
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "chat:a"}); a.Head != 10 || a.Epoch != epoch || len(a.Events) != 0 || a.Recovered {
		t.Errorf("head: %v", a)
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "chat:a", Last: 3}); a.From != 7 || offsetsOf(a.Events) != "[8 9 10]" {
		t.Errorf("last 3: %v", a)
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "chat:a", Last: 50}); a.From != 0 || len(a.Events) != 10 {
		t.Errorf("last 50: %v", a)
	}
	cut := position("chat:a", epoch, 0)
	cut.MaxBytes = 3
	if a := e.ask(cut); !a.Recovered || !a.More || offsetsOf(a.Events) != "[1 2 3]" {
		t.Errorf("cut at 3 bytes: %v", a)
	}
	if _, h, r := n.store.counts(); h != heads || r != reads {
		t.Errorf("%d head and %d range queries for answers that memory has", h-heads, r-reads)
	}
}

// A position may be anything; it is always answered, and recovered only if
// nothing is missing.
func TestForeignPositionIsNeverRecovered(t *testing.T) {
	for _, warm := range []bool{true, false} {
		t.Run(fmt.Sprintf("warm=%v", warm), func(t *testing.T) {
			n := start(t, nil, nil)
			epoch := n.fill("chat:a", 10)
			if !warm {
				n.forget("chat:a")
			}
			e := n.sync()
			for name, c := range map[string]struct {
				epoch, offset uint64
				recovered     bool
			}{
				"head":            {epoch, 10, true},
				"zero":            {epoch, 0, true},
				"ahead":           {epoch, 11, false},
				"far ahead":       {epoch, 1 << 62, false},
				"other epoch":     {epoch + 1, 3, false},
				"other epoch, 10": {epoch + 9, 10, false},
				"lower epoch":     {0, 10, false},
			} {
				a := e.ask(position("chat:a", c.epoch, c.offset))
				if a.Status != gatewayv1.Status_STATUS_OK || a.Recovered != c.recovered || a.Head != 10 || a.Epoch != epoch {
					t.Errorf("%s: %v", name, a)
				}
				if want := 10 - int(c.offset); c.recovered && len(a.Events) != want || !c.recovered && len(a.Events) != 0 {
					t.Errorf("%s: %d events", name, len(a.Events))
				}
			}
		})
	}
}

func (n *node) forget(channel string) {
	n.table.With(channel, func(c *machine.Channel, _ *machine.Step) { c.Let() })
}

// What is older than history is told as such.
func TestTrimmedPositionIsNotRecovered(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.Namespaces["short"] = namespace.Namespace{HistorySize: 3, Recover: true, Subscribe: namespace.Everyone}
	})
	epoch := n.fill("short:a", 10)
	if err := n.retention.Round(testContext(t)); err != nil {
		t.Fatal(err)
	}
	n.forget("short:a")
	e := n.sync()
	for offset, want := range map[uint64]bool{10: true, 8: true, 7: true, 6: false, 0: false} {
		a := e.ask(position("short:a", epoch, offset))
		if a.Recovered != want || a.Head != 10 || !want && a.From != 7 { // 7: from there on it can be had
			t.Errorf("after %d: %v, want recovered=%v", offset, a, want)
		}
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "short:a", Last: 9}); offsetsOf(a.Events) != "[8 9 10]" || a.From != 7 {
		t.Errorf("last 9 of 3: %v", a)
	}
}

// A channel that nobody has published on has a position all the same.
func TestUnseenChannelHasAPosition(t *testing.T) {
	shared := memory.New(memory.Default())
	a, b := start(t, shared, nil), start(t, shared, func(c *Config) { c.ID = "r2" })
	x := a.sync().ask(position("chat:new", 0, 0))
	y := b.sync().ask(&gatewayv1.Ask{Channel: "chat:new"})
	if x.Epoch == 0 || x.Epoch != y.Epoch || x.Head != 0 || y.Head != 0 || x.Recovered {
		t.Errorf("two routers say %v and %v", x, y)
	}
	if z := b.sync().ask(position("chat:new", x.Epoch, 0)); !z.Recovered {
		t.Errorf("nothing was missed: %v", z)
	}
}

// Another router has written: this one believes its own old head until an edge
// that has seen more asks.
func TestAskBelowSeenIsCheckedWithStore(t *testing.T) {
	shared := memory.New(memory.Default())
	a, b := start(t, shared, nil), start(t, shared, func(c *Config) { c.ID = "r2" })
	epoch := a.fill("chat:a", 3)
	b.fill("chat:a", 2)
	e := a.sync()
	ask := position("chat:a", epoch, 3)
	ask.SeenEpoch, ask.SeenOffset = epoch, 5
	if got := e.ask(ask); !got.Recovered || got.Head != 5 || offsetsOf(got.Events) != "[4 5]" {
		t.Errorf("an edge that saw 5: %v", got)
	}
	if got := e.ask(position("chat:a", epoch, 3)); got.Head != 5 {
		t.Errorf("what was read is known from then on: %v", got)
	}
	if got := e.ask(position("chat:a", epoch, 5)); !got.Recovered || got.Head != 5 {
		t.Errorf("a client ahead of memory: %v", got)
	}
}

// Memory is trusted only while the channel was ours without a break.
func TestTrustEndsWithTheOwnership(t *testing.T) {
	shared := memory.New(memory.Default())
	other := start(t, shared, func(c *Config) { c.ID = "r2" })
	breaks := map[string]func(n *node){
		"lease lost":      func(n *node) { n.members.lose() },
		"given to others": func(n *node) { n.giveAway(); n.takeBack() },
	}
	for name, breakIt := range breaks {
		t.Run(name, func(t *testing.T) {
			n := start(t, shared, nil)
			channel := "chat:" + strings.ReplaceAll(name, " ", "-")
			epoch := n.fill(channel, 3)
			other.fill(channel, 1)
			e := n.sync()
			if a := e.ask(position(channel, epoch, 3)); a.Head != 3 {
				t.Fatalf("as long as it is trusted, memory answers: %v", a)
			}
			breakIt(n)
			if a := e.ask(position(channel, epoch, 3)); a.Head != 4 || !a.Recovered || len(a.Events) != 1 {
				t.Errorf("after the break: %v", a)
			}
		})
	}
}

func (n *node) giveAway() {
	n.members.set(snapshotOf(2, routerMember("someone-else", "127.0.0.1:1")))
	n.views.Look(time.Now())
}

func (n *node) takeBack() {
	n.members.set(snapshotOf(3, routerMember(n.cfg.ID, "")))
	n.views.Look(time.Now())
}

// For a minute after a change of owner the head is read before each answer, and
// the tail still spares the events.
func TestFreshOwnerReadsTheHeadAgain(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.OwnerRecheck = time.Hour })
	epoch := n.fill("chat:a", 5)
	_, heads, reads := n.store.counts()
	e := n.sync()
	for range 3 {
		if a := e.ask(position("chat:a", epoch, 3)); !a.Recovered || offsetsOf(a.Events) != "[4 5]" {
			t.Errorf("answer %v", a)
		}
	}
	if _, h, r := n.store.counts(); h != heads || r-reads != 3 {
		t.Errorf("%d calls for heads and %d for pages, want 0 and 3", h-heads, r-reads)
	}
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	for _, q := range n.store.reads[reads:] {
		if len(q) != 1 || q[0].After != wire.MaxOffset {
			t.Errorf("events were read again: %v", q)
		}
	}
}

// Many clients that ask the same, or different cold channels, together cost few
// queries.
func TestAsksTravelTogether(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.ReadWindow = 50 * time.Millisecond })
	var asks []*gatewayv1.Ask
	for i := range 100 {
		channel := fmt.Sprintf("chat:%d", i)
		epoch := n.fill(channel, 3)
		n.forget(channel)
		for range 10 {
			asks = append(asks, position(channel, epoch, 1))
		}
	}
	_, heads, reads := n.store.counts()
	for _, a := range n.sync().askAll(asks...) {
		if !a.Recovered || offsetsOf(a.Events) != "[2 3]" {
			t.Fatalf("answer %v", a)
		}
	}
	if _, h, r := n.store.counts(); r-reads > 3 || h != heads {
		t.Errorf("%d range and %d head queries for 1,000 asks of 100 channels", r-reads, h-heads)
	}
}

func TestAsksAreAdmitted(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.OpenNamespaces = false })
	e := n.sync()
	for name, c := range map[string]struct {
		ask  *gatewayv1.Ask
		want gatewayv1.Status
	}{
		"unknown":          {&gatewayv1.Ask{Channel: "nope:a"}, gatewayv1.Status_STATUS_NOT_FOUND},
		"bad name":         {&gatewayv1.Ask{Channel: "a\x00"}, gatewayv1.Status_STATUS_INVALID},
		"needs a grant":    {&gatewayv1.Ask{Channel: "closed:a", OpenOnly: true}, gatewayv1.Status_STATUS_FORBIDDEN},
		"with grant":       {&gatewayv1.Ask{Channel: "closed:a"}, gatewayv1.Status_STATUS_OK},
		"open to everyone": {&gatewayv1.Ask{Channel: "brief:a", OpenOnly: true}, gatewayv1.Status_STATUS_OK},
		"own channel":      {&gatewayv1.Ask{Channel: "user:ann"}, gatewayv1.Status_STATUS_OK},
	} {
		if a := e.ask(c.ask); a.Status != c.want {
			t.Errorf("%s: %v, want %v", name, a, c.want)
		}
	}
}

// An edge that does not read its answers is not read from either; another edge
// and the publishers do not notice.
func TestSlowEdgeHurtsItself(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.API.StreamBytes = 64 << 10 })
	data := `"` + strings.Repeat("x", 10_000) + `"`
	for range 20 {
		n.publish1("chat:big", data, "")
	}
	epoch := n.state("chat:big").Epoch
	slow := n.sync()
	const asks = 500 // 100 MB of answers
	sent := make(chan struct{})
	go func() { // ends with the stream, or when all is sent
		defer close(sent)
		for i := range asks {
			a := position("chat:big", epoch, 0)
			a.Id = uint64(i + 1)
			if slow.stream.Send(&gatewayv1.SyncRequest{Asks: []*gatewayv1.Ask{a}}) != nil {
				return
			}
		}
	}()
	quick := n.sync()
	for i := range 50 {
		if a := quick.ask(position("chat:big", epoch, 19)); !a.Recovered {
			t.Fatalf("ask %d of the other edge: %v", i, a)
		}
		n.publish1("chat:other", `1`, "")
	}
	got, events := 0, 0
	for got < asks { // it reads after all: every ask has its answer
		response, err := slow.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range response.Answers {
			got++
			events += len(a.Events)
		}
	}
	<-sent
	if events != asks*20 {
		t.Errorf("%d events in %d answers", events, got)
	}
}

// Channels without a store: offsets in the owner's memory, recovery from its
// tail. It is served for a moment after the view has given it to another, and goes on
// if it comes back and nobody had it.
func TestVolatileChannelLivesWithItsOwner(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.HandoverGrace = 500 * time.Millisecond })
	first := n.publish1("brief:a", `1`, "k")
	n.publish1("brief:a", `2`, "")
	if again := n.publish1("brief:a", `1`, "k"); again.Offset != 1 || !again.Repeat {
		t.Errorf("repeat: %v", again)
	}
	e := n.sync()
	head := e.ask(&gatewayv1.Ask{Channel: "brief:a"})
	if a := e.ask(position("brief:a", head.Epoch, 0)); !a.Recovered || offsetsOf(a.Events) != "[1 2]" {
		t.Errorf("recover: %v", a)
	}
	if calls, heads, reads := n.store.counts(); calls+heads+reads != 0 {
		t.Errorf("the store was called")
	}
	n.giveAway()
	if _, err := n.publishErr("brief:a", `3`, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("published on a channel of another: %v", err)
	}
	eventually(t, "no answer for a channel of another", func() bool {
		return e.ask(position("brief:a", head.Epoch, 0)).Status == gatewayv1.Status_STATUS_UNAVAILABLE
	})
	n.takeBack()
	third := n.publish1("brief:a", `3`, "")
	if third.Offset != 3 || third.Epoch != first.Epoch {
		t.Errorf("after the return: %v, before: %v", third, first)
	}
	seen := &gatewayv1.Ask{Channel: "brief:a", SeenEpoch: 1 << 60, SeenOffset: 9}
	if a := e.ask(seen); a.Epoch <= 1<<60 || a.Head != 0 {
		t.Errorf("an owner that we never saw: %v", a)
	}
}

func TestCursorNamespaceDoesNotRecover(t *testing.T) {
	n := start(t, nil, nil)
	epoch := n.fill("cursor:a", 3)
	e := n.sync()
	if a := e.ask(position("cursor:a", epoch, 1)); a.Recovered || a.HasHistory || a.Head != 3 {
		t.Errorf("behind: %v", a)
	}
	if a := e.ask(position("cursor:a", epoch, 3)); !a.Recovered {
		t.Errorf("at the head: %v", a)
	}
}

// The newest event was lost on the way to an edge: a second later its offset is
// on the channel's subject again, once.
func TestQuietChannelRepeatsItsHead(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.QuietAfter = 60 * time.Millisecond })
	n.fill("chat:a", 4)
	repeats := func() (heads []uint64) {
		for _, e := range n.bus.all() {
			if len(e.Events) == 0 {
				heads = append(heads, e.Head)
			}
		}
		return heads
	}
	eventually(t, "the head is repeated", func() bool { return len(repeats()) == 1 })
	n.fill("chat:b", 2)
	eventually(t, "the other head is repeated", func() bool { return len(repeats()) == 2 })
	if got := fmt.Sprint(repeats()); got != "[4 2]" {
		t.Errorf("repeated heads %v", got)
	}
}

// The cache stays within its bytes, whole channels go, and nothing is lost by it.
func TestCacheIsBounded(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.CacheBytes = 200 << 10; c.QuietAfter = 20 * time.Millisecond })
	data := `"` + strings.Repeat("x", 2000) + `"`
	for i := range 300 {
		n.publish1(fmt.Sprintf("chat:%d", i), data, "")
	}
	eventually(t, "the cache is below its bound", func() bool {
		return n.counter("spillway_router_cache_bytes") <= float64(n.cfg.CacheBytes)
	})
	if placed := n.publish1("chat:0", data, ""); placed.Offset != 2 {
		t.Errorf("an evicted channel goes on at %v", placed)
	}
}

func TestHistoryPages(t *testing.T) {
	for _, warm := range []bool{true, false} {
		t.Run(fmt.Sprintf("warm=%v", warm), func(t *testing.T) {
			n := start(t, nil, nil)
			n.fill("chat:a", 10)
			read := func(offset *uint64, limit uint32, reverse bool) (string, bool) {
				if !warm {
					n.forget("chat:a")
				}
				r, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "chat:a", Offset: offset, Limit: limit, Reverse: reverse})
				if err != nil {
					t.Fatal(err)
				}
				if r.Head != 10 || r.First > 11 {
					t.Errorf("head %d, first %d", r.Head, r.First)
				}
				var out []uint64
				for _, e := range r.Events {
					if e.GetJson() != fmt.Sprint(e.Offset) {
						t.Errorf("offset %d holds %q", e.Offset, e.GetJson())
					}
					out = append(out, e.Offset)
				}
				return fmt.Sprint(out), r.More
			}
			at := func(o uint64) *uint64 { return &o }
			for _, c := range []struct {
				offset  *uint64
				limit   uint32
				reverse bool
				want    string
				more    bool
			}{
				{nil, 3, false, "[1 2 3]", true},
				{at(8), 0, false, "[9 10]", false},
				{at(10), 5, false, "[]", false},
				{at(99), 5, false, "[]", false},
				{nil, 2, true, "[10 9]", true},
				{at(3), 5, true, "[2 1]", false},
				{at(3), 1, true, "[2]", true},
				{at(1), 5, true, "[]", false},
				{at(0), 5, true, "[]", false},
				{at(99), 1, true, "[10]", true},
			} {
				if got, more := read(c.offset, c.limit, c.reverse); got != c.want || more != c.more {
					t.Errorf("%v limit %d reverse %v: %s more=%v, want %s more=%v", c.offset, c.limit, c.reverse, got, more, c.want, c.more)
				}
			}
			if _, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "chat:a", Epoch: "zzz", Offset: at(3)}); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("another epoch: %v", err)
			}
		})
	}
}

// After kill -9 and a restart the registry goes on showing the one that died, under our
// name, and its revision is as old as the epochs that it began: numbering from 1 again
// would give two events one position.
func TestARouterNumbersNothingForItsPredecessor(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.HandoverWait = 50 * time.Millisecond })
	before := n.publish1("brief:a", "1", "")
	if !n.table.Let("brief:a") {
		t.Fatal("the channel is busy")
	}
	predecessor := routerMember("r1", "")
	predecessor.Incarnation = 7
	n.members.set(snapshotOf(1, predecessor))
	if placed, err := n.publishErr("brief:a", "2", ""); status.Code(err) != codes.Unavailable {
		t.Errorf("published at %v, %v", placed, err)
	}
	n.members.set(snapshotOf(2, routerMember("r1", "")))
	if after := n.publish1("brief:a", "3", ""); after.Epoch == before.Epoch || after.Offset != 1 {
		t.Errorf("before at %v, registered at %v", before, after)
	}
}

// busyStore publishes on a channel between a reader's look for its row, which was not
// there, and the making of it.
type busyStore struct {
	history.Store
	once sync.Once
}

func (s *busyStore) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	s.once.Do(func() {
		heads, err := s.Store.Heads(ctx, queries)
		if err == nil {
			_, err = s.Store.Append(ctx, []history.Run{{Channel: queries[0].Channel, Epoch: heads[0].Epoch, Events: []history.Event{
				{Offset: 1, Data: []byte("1")}, {Offset: 2, Data: []byte("2")},
			}}})
		}
		if err != nil {
			panic(err)
		}
	})
	return s.Store.Heads(ctx, queries)
}

// The first events of a channel came while a reader made its row: they are read, not
// told as history that is gone.
func TestEventsThatComeBeforeTheRowOfAReaderAreRead(t *testing.T) {
	n := start(t, &busyStore{Store: memory.New(memory.Default())}, nil)
	page, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "chat:new"})
	if err != nil || page.Head != 2 || page.First != 1 || len(page.Events) != 2 {
		t.Errorf("%v, %v", page, err)
	}
}
