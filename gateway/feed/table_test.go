package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// cluster is a bus, routers and a view in memory, for tables in a synctest bubble.
type cluster struct {
	mu         sync.Mutex // guards all below
	cond       *sync.Cond
	queues     [][][]byte
	interest   map[string]int
	renewed    map[string]int
	reconnects uint64
	refuse     error

	channels map[string]*truth
	asked    []*gatewayv1.Ask
	askedAt  []time.Time
	delay    time.Duration
	status   gatewayv1.Status
	retryMS  uint32 // what an answer that is not OK says
	snapshot *presence.Snapshot
	heard    map[string]time.Time
}

func newCluster(shards int) *cluster {
	c := &cluster{
		queues: make([][][]byte, shards), interest: make(map[string]int), renewed: make(map[string]int),
		channels: make(map[string]*truth), delay: time.Millisecond, status: gatewayv1.Status_STATUS_OK,
		heard: make(map[string]time.Time),
	}
	c.cond = sync.NewCond(&c.mu)
	c.routers("r1")
	return c
}

func (c *cluster) routers(ids ...string) {
	var members []*presence.Member
	for _, id := range ids {
		members = append(members, &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshot = presence.NewSnapshot(members, time.Now().UnixNano())
}

func (c *cluster) Snapshot() *presence.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot
}

func (c *cluster) LastHeard(key presence.Key) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.heard[key.ID]; ok {
		return at
	}
	return time.Now()
}

func (c *cluster) Interest(channel string, shard int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return c.refuse
	}
	c.interest[channel] = shard
	return nil
}

func (c *cluster) Renew(channel string, shard int) error {
	c.mu.Lock()
	c.renewed[channel]++
	c.mu.Unlock()
	return c.Interest(channel, shard)
}

func (c *cluster) Drop(channel string, _ int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.interest, channel)
}

func (c *cluster) Disruptions(int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reconnects
}

func (c *cluster) Receive(ctx context.Context, shard int, into [][]byte) ([][]byte, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cond.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queues[shard]) == 0 {
		if ctx.Err() != nil {
			return into, ctx.Err()
		}
		c.cond.Wait()
	}
	n := min(len(c.queues[shard]), cap(into)-len(into))
	into = append(into, c.queues[shard][:n]...)
	c.queues[shard] = c.queues[shard][n:]
	return into, nil
}

func (c *cluster) Ask(a *gatewayv1.Ask, to Answerer) {
	c.mu.Lock()
	c.asked = append(c.asked, a)
	c.askedAt = append(c.askedAt, time.Now())
	delay, status, retryMS := c.delay, c.status, c.retryMS
	c.mu.Unlock()
	time.AfterFunc(delay, func() {
		c.mu.Lock()
		answer := &gatewayv1.Answer{Id: a.Id, Status: status, Message: "so it is", RetryAfterMs: retryMS}
		if status == gatewayv1.Status_STATUS_OK {
			answer = c.channel(a.Channel).answer(a)
		}
		c.mu.Unlock()
		to.Answer(answer)
	})
}

func (c *cluster) channel(name string) *truth {
	tr := c.channels[name]
	if tr == nil {
		tr = &truth{epoch: 1, first: 1, history: true}
		c.channels[name] = tr
	}
	return tr
}

// publish numbers n events and, unless lost, puts them on the bus.
func (c *cluster) publish(name string, n int, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tr := c.channel(name)
	env := &gatewayv1.Envelope{Channel: name, Epoch: tr.epoch, Base: tr.base}
	for range n {
		tr.head++
		env.Events = append(env.Events, tr.event(tr.head))
	}
	env.Head = tr.head
	shard, interested := c.interest[name]
	if lost || !interested {
		return
	}
	b, _ := proto.Marshal(env)
	c.queues[shard] = append(c.queues[shard], b)
	c.cond.Broadcast()
}

func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// asksFor counts what was asked about a channel, whatever kind.
func (c *cluster) asksFor(match func(*gatewayv1.Ask) bool) (n int, last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range c.asked {
		if match(a) {
			n++
			last = c.askedAt[i]
		}
	}
	return n, last
}

func headAsk(a *gatewayv1.Ask) bool   { return a.MaxBytes == 0 && a.Epoch == nil && a.Last == 0 }
func repairAsk(a *gatewayv1.Ask) bool { return a.Epoch != nil && a.MaxBytes > 1<<16 }

// recorder is a sink that writes down what it hears, with the time.
type recorder struct {
	mu    sync.Mutex // guards all below
	start time.Time
	log   []string
	at    []time.Duration
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
	r.at = append(r.at, time.Since(r.start))
}

func texts(frames []Frame) string {
	var b []string
	for _, f := range frames {
		b = append(b, string(f.Text))
	}
	return strings.Join(b, " ")
}

func (r *recorder) Live(channel string, epoch uint64, frames []Frame, history bool) {
	r.note("live %s", texts(frames))
}

func (r *recorder) Gap(g Gap) {
	r.note("gap %d:%d %s", g.Epoch, g.Offset, g.Reason)
}

func (r *recorder) Piece(p Piece) {
	if p.Status != OK {
		r.note("piece %d %s", p.Sub, p.Status)
		return
	}
	r.note("piece %d head %d:%d recovered=%t from=%d [%s] live=%t", p.Sub, p.Epoch, p.Head, p.Recovered, p.From, texts(p.Frames), p.Live)
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log, r.at = nil, nil
	return log
}

// bench is a running table.
type bench struct {
	t     *testing.T
	c     *cluster
	table *Table
	sinks []*recorder
}

func inBubble(t *testing.T, change func(*Config), story func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.Shards = 2
		cfg.Encode = func(_ string, _ uint64, e *gatewayv1.BusEvent) []byte { return slices.Clone(e.Data) }
		cfg.Registry = prometheus.NewRegistry()
		c := newCluster(cfg.Shards)
		cfg.View = c
		if change != nil {
			change(&cfg)
		}
		b := &bench{t: t, c: c, sinks: []*recorder{{start: time.Now()}, {start: time.Now()}}}
		table, err := New(cfg, c, c, []Sink{b.sinks[0], b.sinks[1]})
		if err != nil {
			t.Fatal(err)
		}
		b.table = table
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		// Ends with cancel, waited for below.
		go func() { done <- table.Run(ctx) }()
		story(b)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.set(func() {
			if len(c.interest) > 0 {
				t.Errorf("interest left: %v", c.interest)
			}
		})
		time.Sleep(time.Minute) // answers under way
	})
}

func (b *bench) join(sink int, sub uint64, channel string, more func(*Pull)) {
	p := Pull{Sink: sink, Conn: 1, Sub: sub, Channel: channel, MaxBytes: 1 << 16, First: true}
	if more != nil {
		more(&p)
	}
	b.table.Pull(p)
}

func at(epoch, offset uint64) func(*Pull) {
	return func(p *Pull) { p.HasPosition, p.Epoch, p.Offset = true, epoch, offset }
}

func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) heard(sink int, want ...string) {
	b.t.Helper()
	if got := b.sinks[sink].take(); !slices.Equal(got, want) {
		b.t.Fatalf("sink %d heard\n  %s\nwant\n  %s", sink, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEventsReachEverySinkInOrder(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.join(1, 2, "a", nil)
		b.wait(100 * time.Millisecond)
		b.c.publish("a", 2, false)
		b.c.publish("a", 1, false)
		b.wait(time.Millisecond)
		b.heard(0, "piece 1 head 1:0 recovered=false from=0 [] live=true", "live 1:1 1:2", "live 1:3")
		b.heard(1, "piece 2 head 1:0 recovered=false from=0 [] live=true", "live 1:1 1:2", "live 1:3")
		b.table.Leave(1, "a")
		b.c.publish("a", 1, false)
		b.wait(time.Millisecond)
		b.heard(0, "live 1:4")
		b.heard(1)
	})
}

func TestHoleIsAskedForAfterFiftyMilliseconds(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(20 * time.Second / 10)
		b.sinks[0].take()
		b.c.publish("a", 1, false)
		b.wait(time.Millisecond)
		b.c.publish("a", 2, true)
		b.c.publish("a", 1, false)
		began := time.Now()
		b.wait(40 * time.Millisecond)
		b.heard(0, "live 1:1")
		if n, _ := b.c.asksFor(repairAsk); n != 0 {
			t.Fatal("a young hole was asked for")
		}
		b.wait(100 * time.Millisecond)
		n, when := b.c.asksFor(repairAsk)
		if n != 1 || when.Sub(began) != 50*time.Millisecond {
			t.Fatalf("asked %d times, %v after the jump", n, when.Sub(began))
		}
		b.heard(0, "live 1:2 1:3 1:4")
	})
}

func TestLostRangeIsAnnouncedOnceAndOnlyAsFarAsHistoryLostIt(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.sinks[0].take()
		b.c.publish("a", 5, true)
		b.c.set(func() { b.c.channels["a"].first = 3 })
		b.c.publish("a", 1, false)
		b.wait(200 * time.Millisecond)
		b.heard(0, "gap 1:2 history", "live 1:3 1:4 1:5 1:6")
	})
}

// What history still has may be more than one answer brings.
func TestALongHistoryIsLostNoFurtherThanItBegins(t *testing.T) {
	inBubble(t, func(cfg *Config) { cfg.ChunkBytes = 8 }, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.sinks[0].take()
		b.c.publish("a", 8, true)
		b.c.set(func() { b.c.channels["a"].first = 3 })
		b.c.publish("a", 1, false)
		b.wait(time.Second)
		b.heard(0, "gap 1:2 history", "live 1:3 1:4", "live 1:5 1:6", "live 1:7 1:8", "live 1:9")
	})
}

func TestWithoutHistoryTheHoleIsAnnouncedAndNobodyIsAsked(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.channel("a").history = false
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.sinks[0].take()
		b.c.publish("a", 2, true)
		b.c.publish("a", 1, false)
		b.wait(200 * time.Millisecond)
		b.heard(0, "gap 1:2 no_history", "live 1:3")
		if n, _ := b.c.asksFor(repairAsk); n != 0 {
			t.Fatal("a router was asked for what it cannot have")
		}
	})
}

func TestNewEpochIsAnnouncedBeforeItsFirstEvent(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.c.publish("a", 3, false)
		b.wait(time.Second)
		b.sinks[0].take()
		b.c.set(func() { b.c.channels["a"] = &truth{epoch: 9, first: 1, history: true} })
		b.c.publish("a", 1, true)
		b.c.publish("a", 1, false)
		b.wait(200 * time.Millisecond)
		b.heard(0, "gap 9:0 epoch", "live 9:1 9:2")
	})
}

// History outlived the epoch before: who was live is not given it again, and hears
// that something may be missing, also while nothing new is published.
func TestNewEpochGoesOnBehindWhatHistoryKept(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.c.publish("a", 9, false)
		b.wait(time.Second)
		b.sinks[0].take()
		b.c.set(func() { b.c.channels["a"] = &truth{epoch: 9, first: 1, head: 6, base: 6, history: true} })
		b.c.publish("a", 0, false) // the head is repeated
		b.wait(200 * time.Millisecond)
		b.heard(0, "gap 9:6 epoch")
		b.c.publish("a", 1, true)
		b.c.publish("a", 1, false)
		b.wait(200 * time.Millisecond)
		b.heard(0, "live 9:7 9:8")
	})
}

func TestBackfillIsRecoveredAndJoinsTheLiveFlow(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.publish("a", 4, true)
		b.c.set(func() { b.c.delay = 300 * time.Millisecond })
		b.join(0, 1, "a", at(1, 2))
		b.join(0, 2, "a", at(7, 2)) // of another run
		b.join(0, 3, "a", func(p *Pull) { p.Last = 3 })
		b.wait(100 * time.Millisecond)
		b.c.publish("a", 2, false) // while the question is open
		b.wait(250 * time.Millisecond)
		slices.Sort(b.sinks[0].log)
		b.heard(0,
			"piece 1 head 1:6 recovered=true from=2 [1:3 1:4 1:5 1:6] live=true",
			"piece 2 head 1:6 recovered=false from=6 [] live=true",
			"piece 3 head 1:6 recovered=false from=3 [1:4 1:5 1:6] live=true")
		b.c.publish("a", 1, false)
		b.wait(time.Millisecond)
		b.heard(0, "live 1:7")
	})
}

func TestPullsOfTheSameRangeShareOneQuestion(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.publish("a", 4, true)
		for i := range uint64(50) {
			b.join(int(i%2), i, "a", at(1, 2))
		}
		b.wait(100 * time.Millisecond)
		if n, _ := b.c.asksFor(func(*gatewayv1.Ask) bool { return true }); n != 1 {
			t.Fatalf("%d questions", n)
		}
		if n := len(b.sinks[0].take()) + len(b.sinks[1].take()); n != 50 {
			t.Fatalf("%d answers", n)
		}
	})
}

// Fifty clients that missed the same events, and events that come while the router is
// asked: nothing is encoded or held for each client.
func TestAPieceIsEncodedOnceForAllThatWait(t *testing.T) {
	encoded := 0
	change := func(c *Config) {
		encode := c.Encode
		c.Encode = func(channel string, epoch uint64, e *gatewayv1.BusEvent) []byte {
			encoded++ // one channel, one shard: one goroutine
			return encode(channel, epoch, e)
		}
		c.HoldBytes = 1 << 10
	}
	inBubble(t, change, func(b *bench) {
		b.c.set(func() { b.c.delay = 300 * time.Millisecond })
		b.c.publish("a", 4, true)
		const clients = 50
		for i := range uint64(clients) {
			b.join(int(i%2), i, "a", at(1, 2))
		}
		b.wait(100 * time.Millisecond)
		b.c.publish("a", 3, false)
		b.wait(400 * time.Millisecond)
		for sink := range 2 {
			log := b.sinks[sink].take()
			if len(log) != clients/2 {
				t.Fatalf("sink %d heard %d pieces: %s", sink, len(log), strings.Join(log, "\n"))
			}
			for _, l := range log {
				if !strings.Contains(l, "recovered=true from=2 [1:3 1:4 1:5 1:6 1:7] live=true") {
					t.Fatalf("heard %s", l)
				}
			}
		}
		if most := 5 + 3; encoded > most { // those of the answer, those held
			t.Errorf("%d encoded for %d clients, at most %d needed", encoded, clients, most)
		}
	})
}

func TestBackfillComesInPieces(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.publish("a", 5, true)
		small := func(offset uint64) func(*Pull) {
			return func(p *Pull) { at(1, offset)(p); p.MaxBytes = 6; p.First = offset == 0 }
		}
		b.join(0, 1, "a", small(0))
		b.wait(10 * time.Millisecond)
		b.heard(0, "piece 1 head 1:5 recovered=true from=0 [1:1 1:2] live=false")
		b.join(0, 1, "a", small(2))
		b.wait(10 * time.Millisecond)
		b.heard(0, "piece 1 head 1:5 recovered=true from=2 [1:3 1:4] live=false")
		b.join(0, 1, "a", small(4))
		b.wait(10 * time.Millisecond)
		b.heard(0, "piece 1 head 1:5 recovered=true from=4 [1:5] live=true")
		asked, _ := b.c.asksFor(func(*gatewayv1.Ask) bool { return true })
		b.join(0, 1, "a", small(5)) // stands where the channel stands
		b.wait(10 * time.Millisecond)
		b.heard(0, "piece 1 head 1:5 recovered=true from=5 [] live=true")
		if n, _ := b.c.asksFor(func(*gatewayv1.Ask) bool { return true }); n != asked {
			t.Fatal("a router was asked for nothing")
		}
	})
}

func TestRouterAwayIsPendingOnceAndThenAnswered(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.set(func() { b.c.status = gatewayv1.Status_STATUS_UNAVAILABLE })
		b.c.publish("a", 1, true)
		b.join(0, 1, "a", at(1, 0))
		b.wait(20 * time.Second)
		b.heard(0, "piece 1 pending")
		n, _ := b.c.asksFor(func(*gatewayv1.Ask) bool { return true })
		if n < 4 || n > 40 {
			t.Errorf("%d questions in 20 s", n)
		}
		b.c.publish("a", 2, false) // held
		b.c.set(func() { b.c.status = gatewayv1.Status_STATUS_OK })
		b.c.routers("r1", "r2") // news: ask again soon
		b.wait(1100 * time.Millisecond)
		b.heard(0, "piece 1 head 1:3 recovered=true from=0 [1:1 1:2 1:3] live=true")
	})
}

func TestRefusalsEndOnlyTheirPull(t *testing.T) {
	for status, want := range map[gatewayv1.Status]string{
		gatewayv1.Status_STATUS_FORBIDDEN: "forbidden",
		gatewayv1.Status_STATUS_NOT_FOUND: "not_found",
		gatewayv1.Status_STATUS_INVALID:   "invalid",
	} {
		inBubble(t, nil, func(b *bench) {
			b.join(0, 1, "a", nil)
			b.wait(time.Second)
			b.sinks[0].take()
			b.c.set(func() { b.c.status = status })
			b.join(0, 2, "a", func(p *Pull) { p.OpenOnly = true })
			b.wait(100 * time.Millisecond)
			b.heard(0, "piece 2 "+want)
			b.c.publish("a", 1, false)
			b.wait(time.Millisecond)
			b.heard(0, "live 1:1")
		})
	}
}

func TestLossOfTheNewestIsFound(t *testing.T) {
	lose := func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(5 * time.Second)
		b.sinks[0].take()
		b.c.publish("a", 1, true)
	}
	found := func(b *bench, within time.Duration) {
		b.t.Helper()
		b.wait(within)
		b.heard(0, "live 1:1")
	}
	t.Run("in thirty seconds at the latest", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) { lose(b); found(b, 31*time.Second) })
	})
	t.Run("after a new interest in one", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			b.join(0, 1, "a", nil)
			b.wait(10 * time.Millisecond)
			b.sinks[0].take()
			b.c.publish("a", 1, true)
			found(b, time.Second)
		})
	})
	t.Run("after a reconnect of the bus in five", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			lose(b)
			b.c.set(func() { b.c.reconnects++ })
			found(b, time.Second)
		})
	})
	t.Run("after a change of owner in five", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			lose(b)
			b.c.routers("r2")
			found(b, time.Second)
		})
	})
	t.Run("when its owner is silent on the bus", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			lose(b)
			b.c.set(func() { b.c.heard["r1"] = time.Now() })
			found(b, 5*time.Second)
		})
	})
	t.Run("when its owner was never heard on the bus", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			b.c.set(func() { b.c.heard["r1"] = time.Time{} })
			b.join(0, 1, "a", nil)
			b.wait(2 * time.Second)
			b.sinks[0].take()
			b.c.publish("a", 1, true)
			found(b, 5*time.Second)
		})
	})
	t.Run("when the head is repeated", func(t *testing.T) {
		inBubble(t, nil, func(b *bench) {
			lose(b)
			b.c.publish("a", 0, false)
			found(b, 100*time.Millisecond)
		})
	})
}

func TestChannelFoundBehindTwiceRenewsItsInterest(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(2 * time.Second)
		for i := range 2 {
			b.c.set(func() {
				if b.c.renewed["a"] != 0 {
					t.Errorf("renewed when found behind %d times", i)
				}
			})
			b.c.publish("a", 1, true)
			b.wait(31 * time.Second)
		}
		b.c.set(func() {
			if b.c.renewed["a"] != 1 {
				t.Errorf("renewed %d times", b.c.renewed["a"])
			}
		})
	})
}

func TestRefusedInterestIsTriedAgain(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.c.set(func() { b.c.refuse = errors.New("no") })
		b.join(0, 1, "a", nil)
		b.wait(100 * time.Millisecond)
		b.c.set(func() { b.c.refuse = nil })
		b.wait(time.Second)
		b.c.set(func() {
			if _, ok := b.c.interest["a"]; !ok {
				t.Error("still no interest")
			}
		})
	})
}

func TestHeadChecksArePaced(t *testing.T) {
	inBubble(t, func(c *Config) { c.HeadRate = 100 }, func(b *bench) {
		for i := range 1000 {
			b.join(0, uint64(i), fmt.Sprint("c", i), nil)
		}
		b.wait(60 * time.Second)
		before, _ := b.c.asksFor(headAsk)
		b.c.set(func() { b.c.reconnects++ })
		b.wait(5 * time.Second)
		after, _ := b.c.asksFor(headAsk)
		if n := after - before; n < 400 || n > 520 {
			t.Errorf("%d heads asked for in 5 s at 100/s", n)
		}
		b.wait(10 * time.Second)
	})
}

func TestRepairBudgetLetsChannelsWaitTheirTurn(t *testing.T) {
	inBubble(t, func(c *Config) { c.RepairRate, c.Shards = 10, 1 }, func(b *bench) {
		for i := range 100 {
			b.join(0, uint64(i), fmt.Sprint("c", i), nil)
		}
		b.wait(2 * time.Second)
		b.sinks[0].take()
		for i := range 100 {
			b.c.publish(fmt.Sprint("c", i), 1, true)
			b.c.publish(fmt.Sprint("c", i), 1, false)
		}
		b.wait(time.Second)
		if n, _ := b.c.asksFor(repairAsk); n > 15 {
			t.Errorf("%d repairs in the first second", n)
		}
		for i := range 100 {
			b.c.publish(fmt.Sprint("c", i), 1, false) // let go while they wait
		}
		b.wait(10 * time.Second)
		if n, _ := b.c.asksFor(repairAsk); n != 100 {
			t.Errorf("%d repairs for 100 channels", n)
		}
		log := strings.Join(b.sinks[0].take(), " ")
		if n := strings.Count(log, "1:3"); n != 100 || strings.Contains(log, "gap") {
			t.Errorf("%d of 100 channels caught up: %s", n, log)
		}
	})
}

func TestInterestLingersThenEnds(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		interested := func() bool {
			b.c.mu.Lock()
			defer b.c.mu.Unlock()
			_, ok := b.c.interest["a"]
			return ok
		}
		b.join(0, 1, "a", nil)
		b.wait(time.Second)
		b.table.Leave(0, "a")
		b.wait(time.Second)
		if !interested() {
			t.Error("interest did not linger")
		}
		b.join(0, 2, "a", nil)
		b.wait(5 * time.Second)
		if !interested() {
			t.Error("interest ended in spite of a subscriber")
		}
		b.table.Leave(0, "a")
		b.table.Leave(0, "a")
		b.wait(2100 * time.Millisecond)
		if interested() {
			t.Error("interest stayed")
		}
	})
}

func TestCancelledPullIsNotAnswered(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.join(0, 2, "a", nil)
		b.table.Cancel(0, 1, 1, "a")
		b.wait(100 * time.Millisecond)
		b.heard(0, "piece 2 head 1:0 recovered=false from=0 [] live=true")
	})
}

func TestEveryQuestionNamesTheHighestSeen(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(2 * time.Second)
		b.c.publish("a", 3, false)
		b.wait(time.Millisecond)
		b.c.set(func() { b.c.asked = nil; b.c.askedAt = nil })
		b.join(0, 2, "a", at(1, 1))
		b.wait(40 * time.Second)
		n, _ := b.c.asksFor(func(a *gatewayv1.Ask) bool { return a.SeenEpoch == 1 && a.SeenOffset == 3 })
		all, _ := b.c.asksFor(func(*gatewayv1.Ask) bool { return true })
		if all < 2 || n != all {
			t.Errorf("%d of %d questions named it", n, all)
		}
	})
}
