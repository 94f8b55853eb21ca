package leave

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/gateway/targets"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// fakeConn is a client without a socket.
type fakeConn struct {
	loop   *fakeLoop
	token  uint64
	mark   Mark
	kind   Kind
	stay   Stay
	full   bool // its queue takes no hint
	hints  int
	closed bool
}

func (c *fakeConn) Token() uint64    { return c.token }
func (c *fakeConn) Mark() *Mark      { return &c.mark }
func (c *fakeConn) Kind() Kind       { return c.kind }
func (c *fakeConn) Stay() *Stay      { return &c.stay }
func (c *fakeConn) From() netip.Addr { return netip.Addr{} }

func (c *fakeConn) Hint(Hint) bool {
	if c.full {
		c.leave(OtherReason)
		return false
	}
	c.hints++
	return true
}

func (c *fakeConn) ShutDown() bool {
	if c.closed {
		return false
	}
	c.leave(ShutDown)
	return true
}

// leave ends it, as an edge's conn ends.
func (c *fakeConn) leave(why Reason) {
	if !c.closed {
		c.loop.part.Left(c, why)
		c.closed, c.kind = true, Gone
	}
}

// fakeLoop is a loop without a poller; turn is its turn.
type fakeLoop struct {
	part   *Part
	conns  []*fakeConn
	orders chan Order
	now    time.Time
}

func (l *fakeLoop) Post(o Order)             { l.orders <- o }
func (l *fakeLoop) Slots() int               { return len(l.conns) }
func (l *fakeLoop) Now() (time.Time, uint32) { return l.now, uint32(l.now.Unix()) }

func (l *fakeLoop) At(slot int) Conn {
	if c := l.conns[slot]; !c.closed {
		return c
	}
	return nil
}

func (l *fakeLoop) Find(token uint64) Conn {
	if token >= uint64(len(l.conns)) || l.conns[token].closed {
		return nil
	}
	return l.conns[token]
}

func (l *fakeLoop) add(k Kind) *fakeConn {
	c := &fakeConn{loop: l, token: uint64(len(l.conns)), kind: k, stay: NewStay(1, "", 0)}
	l.conns = append(l.conns, c)
	return c
}

func (l *fakeLoop) turn() {
	for {
		select {
		case o := <-l.orders:
			o.Apply(l.part)
		default:
			return
		}
	}
}

// fakeEdge has loops, and nobody else in its cluster.
type fakeEdge struct {
	loops   []*fakeLoop
	leaving bool
	held    func() int
}

func (e *fakeEdge) Ready() bool                  { return !e.leaving }
func (e *fakeEdge) Conns() int                   { return e.held() }
func (e *fakeEdge) Held() int                    { return e.held() }
func (e *fakeEdge) SetLeaving(on bool)           { e.leaving = on }
func (e *fakeEdge) Snapshot() *presence.Snapshot { return presence.NewSnapshot(nil, 1) }

func (e *fakeEdge) Figures() map[presence.Key]*presence.Figure { return nil }

func newFake(set settings.Hot, loops int) (*fakeEdge, *Governor) {
	e := &fakeEdge{held: func() int { return 0 }}
	g := New(Config{ID: "e1", Region: "eu", Born: time.Now(), CloseWait: time.Second, Log: slog.New(slog.DiscardHandler)}, Deps{
		Edge: e, Targets: targets.New(targets.Self{ID: "e1", Region: "eu"}, e), Settings: func() *settings.Hot { return &set },
	})
	for range loops {
		l := &fakeLoop{orders: make(chan Order, 1_000), now: time.Now()}
		l.part = g.AddLoop(l)
		e.loops = append(e.loops, l)
	}
	return e, g
}

// Whatever orders come and whoever leaves meanwhile: the counts by class are those of the
// conns, and every client that took part is counted in exactly one of the figures.
func TestEveryClientIsCountedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, g := newFake(settings.Hot{}, 1)
		l := g.parts[0].conns.(*fakeLoop)
		kinds := rapid.SampledFrom([]Kind{Unmovable, Movable, Critical})
		for range rapid.IntRange(0, 20).Draw(t, "conns") {
			l.add(kinds.Draw(t, "kind"))
		}
		d := g.depart(&gatewayv1.Operation{Id: "op"}, "shutdown", l.now, l.now, l.now.Add(time.Minute))
		done := make(chan struct{}, 1)
		l.Post(&enrollOrder{d: d, done: done})
		l.turn()
		took := len(l.conns)
		someone := func() *fakeConn {
			if len(l.conns) == 0 {
				return l.add(Gone)
			}
			return l.conns[rapid.IntRange(0, len(l.conns)-1).Draw(t, "who")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				l.turn()
				var have [numClasses]int64
				for _, c := range l.conns {
					if !c.closed && c.mark.class != classNone {
						have[c.mark.class]++
					}
				}
				for k := classCritical; k < numClasses; k++ {
					if n := d.parts[0].here[k].Load(); n != have[k] {
						t.Fatalf("class %d counts %d, has %d", k, n, have[k])
					}
				}
				if f := d.figures(l.now, false); int(f.Total) != took || f.Moved+f.Closed+f.Stragglers+f.Gone+f.Remaining != f.Total {
					t.Fatalf("%d took part: %v", took, f)
				}
			},
			"come": func(t *rapid.T) {
				l.part.Came(l.add(kinds.Draw(t, "kind")))
				took++
			},
			"say connect": func(*rapid.T) {
				if c := someone(); c.kind == Unmovable {
					c.kind = Movable
					l.part.Came(c)
				}
			},
			"leave": func(t *rapid.T) { someone().leave(rapid.SampledFrom([]Reason{OtherReason, Itself}).Draw(t, "why")) },
			"fill":  func(*rapid.T) { c := someone(); c.full = !c.full },
			"move": func(t *rapid.T) {
				n := rapid.IntRange(0, 5).Draw(t, "n")
				_, of := d.split(n, classCritical, classMovable)
				granted := rapid.Bool().Draw(t, "granted")
				l.Post(&moveOrder{d: d, target: rapid.SampledFrom([]string{"e2", "e3"}).Draw(t, "to"), granted: granted, grace: time.Second, slots: make([]time.Time, len(of)), of: of})
			},
			"close": func(t *rapid.T) {
				k := rapid.SampledFrom([]class{classUnmovable, classHinted}).Draw(t, "class")
				loops, _ := d.split(rapid.IntRange(0, 5).Draw(t, "n"), k)
				l.Post(&closeOrder{d: d, n: len(loops), k: k})
			},
			"recall": func(t *rapid.T) { l.Post(recallOrder{d, "e2"}) },
			"grace":  func(*rapid.T) { l.now = l.now.Add(time.Second); l.Post(graceOrder{d}) },
		})
		l.Post(new(closeAllOrder))
		l.turn()
		if n := d.remaining(); n != 0 {
			t.Fatalf("%d are left", n)
		}
	})
}

// An edge that is alone, without a registry and without a bus, still empties itself, in
// order and within its deadline.
func TestADrainNeedsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := newFake(settings.Hot{DrainDeadline: 20 * time.Second}, 2)
		for i := range 100 {
			e.loops[i%2].add([]Kind{Unmovable, Movable, Critical}[i%3])
		}
		stop := make(chan struct{})
		turns := func(l *fakeLoop) { // ends with stop
			for {
				select {
				case <-stop:
					return
				case o := <-l.orders:
					l.now = time.Now()
					o.Apply(l.part)
				}
				for _, c := range l.conns {
					if c.hints > 0 && !c.closed && c.token%2 == 0 { // half of them obey
						c.leave(Itself)
					}
				}
			}
		}
		for _, l := range e.loops {
			go turns(l)
		}
		signal, leave := context.WithCancel(t.Context())
		leave()
		start := time.Now()
		g.Run(Bounds{Leave: signal, Abort: t.Context(), Failing: t.Context()})
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		close(stop)
		synctest.Wait()
		for _, l := range e.loops {
			for _, c := range l.conns {
				if !c.closed {
					t.Errorf("conn %d, kind %d, is left", c.token, c.kind)
				}
			}
		}
	})
}
