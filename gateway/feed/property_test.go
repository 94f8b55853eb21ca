package feed

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// truth is the naive model of one channel: what was published, what history has.
type truth struct {
	epoch   uint64
	head    uint64
	base    uint64 // head when the epoch began
	first   uint64 // oldest offset that history has; head + 1: none
	history bool
}

func text(epoch, offset uint64) string { return fmt.Sprintf("%d:%d", epoch, offset) }

func (tr *truth) event(offset uint64) *gatewayv1.BusEvent {
	return &gatewayv1.BusEvent{Offset: offset, Data: []byte(text(tr.epoch, offset))}
}

// answer is what a router would say now.
func (tr *truth) answer(a *gatewayv1.Ask) *gatewayv1.Answer {
	out := &gatewayv1.Answer{
		Id: a.Id, Status: gatewayv1.Status_STATUS_OK, Epoch: tr.epoch, Head: tr.head, HasHistory: tr.history, Base: tr.base,
	}
	from := tr.head
	switch {
	case a.Epoch != nil:
		out.Recovered = *a.Epoch == tr.epoch && a.Offset <= tr.head && (a.Offset == tr.head || tr.history && a.Offset+1 >= tr.first)
		if out.Recovered {
			from = a.Offset
		} else if tr.history && *a.Epoch == tr.epoch && a.Offset+1 < tr.first {
			out.From = tr.first - 1
		}
	case a.Last > 0:
		if tr.history {
			from = max(tr.first-1, tr.head-min(tr.head, uint64(a.Last)))
		}
		out.From = from
	}
	size := uint32(0)
	for o := from + 1; o <= tr.head; o++ {
		ev := tr.event(o)
		if size += uint32(len(ev.Data)); a.MaxBytes > 0 && size > a.MaxBytes && len(out.Events) > 0 {
			out.More = true
			break
		}
		out.Events = append(out.Events, ev)
	}
	return out
}

// simSub is a subscriber as a loop would keep it.
type simSub struct {
	id    uint64
	sink  int
	state int // 0 waits, 1 live, 2 behind, 3 pulls
	first bool
	asked bool
	last  uint32
	epoch uint64
	pos   uint64
}

const (
	simWaits = iota
	simLive
	simBehind
	simPulls
)

// sim is a shard without its goroutine, a clock that is told, a bus and routers
// that misbehave as the test wants.
type sim struct {
	t     *rapid.T
	shard *shard
	truth truth
	now   time.Time
	bus   [][]byte         // under way
	asks  []*gatewayv1.Ask // unanswered
	early map[uint64]*gatewayv1.Answer
	subs  map[uint64]*simSub
	next  uint64
	recon uint64
	gaps  int
}

const simChannel = "chat:room"

type simBus struct{ *sim }

func (b simBus) Interest(string, int) error { return nil }
func (b simBus) Renew(string, int) error    { return nil }
func (b simBus) Drop(string, int)           {}
func (b simBus) Disruptions(int) uint64     { return b.recon }
func (b simBus) Receive(context.Context, int, [][]byte) ([][]byte, error) {
	return nil, context.Canceled
}

type simAsker struct{ *sim }

func (a simAsker) Ask(ask *gatewayv1.Ask, _ Answerer) {
	a.asks = append(a.asks, ask)
	a.early[ask.Id] = a.truth.answer(ask)
}

type simSink struct {
	*sim
	id int
}

func (k simSink) Live(channel string, epoch uint64, frames []Frame, history bool) {
	for _, s := range k.subs {
		if s.sink != k.id || s.state != simLive {
			continue
		}
		for _, f := range frames {
			if string(f.Text) != text(epoch, f.Offset) {
				k.t.Fatalf("event %d:%d has the text %s", epoch, f.Offset, f.Text)
			}
			if epoch == s.epoch && f.Offset <= s.pos {
				continue
			}
			if epoch == k.truth.epoch && f.Offset <= k.truth.base {
				k.t.Fatalf("live subscriber %d was given %d:%d, from before the epoch", s.id, epoch, f.Offset)
			}
			if epoch != s.epoch || f.Offset != s.pos+1 {
				k.t.Fatalf("live subscriber %d at %d:%d was given %d:%d", s.id, s.epoch, s.pos, epoch, f.Offset)
			}
			s.pos++
		}
	}
}

func (k simSink) Gap(g Gap) {
	epoch, offset, reason := g.Epoch, g.Offset, g.Reason
	for _, s := range k.subs {
		if s.sink != k.id || s.state != simLive || epoch < s.epoch || epoch == s.epoch && offset <= s.pos {
			continue
		}
		if epoch == s.epoch && s.pos < g.From {
			k.t.Fatalf("live subscriber %d at %d:%d was told of a gap from %d to %d", s.id, epoch, s.pos, g.From, offset)
		}
		if epoch == s.epoch && epoch == k.truth.epoch && k.truth.history && s.pos+1 >= k.truth.first {
			k.t.Fatalf("live subscriber %d at %d:%d was told of a gap up to %d (%s), but history has from %d; feed %+v", s.id, epoch, s.pos, offset, reason, k.truth.first, *k.shard.feeds[0])
		}
		if epoch == s.epoch && epoch == k.truth.epoch && k.truth.history && offset >= k.truth.first {
			k.t.Fatalf("live subscriber %d at %d:%d was told of a gap up to %d (%s), but history has from %d", s.id, epoch, s.pos, offset, reason, k.truth.first)
		}
		k.gaps++
		s.epoch, s.pos = epoch, offset
	}
}

func (k simSink) Piece(p Piece) {
	s := k.subs[p.Sub]
	if s == nil || p.Status == Pending {
		return
	}
	if p.Status != OK || p.Channel != simChannel || s.sink != k.id {
		k.t.Fatalf("piece %+v for %+v", p, s)
	}
	switch s.state {
	case simWaits:
		if !p.Recovered {
			if s.asked && s.epoch == k.truth.epoch && p.Epoch == s.epoch && k.truth.history && s.pos+1 >= k.truth.first && s.pos <= k.truth.head {
				k.t.Fatalf("position %d:%d was not recovered, but history has from %d", s.epoch, s.pos, k.truth.first)
			}
			s.epoch, s.pos = p.Epoch, p.From
			if s.last == 0 && p.From != p.Head {
				k.t.Fatalf("begins at %d, head %d", p.From, p.Head)
			}
		}
	case simPulls:
		if !p.Recovered {
			if p.Epoch == s.epoch && p.Epoch == k.truth.epoch && k.truth.history && s.pos+1 >= k.truth.first {
				k.t.Fatalf("pull from %d:%d was not recovered, but history has from %d", s.epoch, s.pos, k.truth.first)
			}
			if p.Epoch == k.truth.epoch && k.truth.history && p.From > k.truth.base && p.From >= k.truth.first {
				k.t.Fatalf("pull from %d:%d goes on from %d:%d, but history has from %d", s.epoch, s.pos, p.Epoch, p.From, k.truth.first)
			}
			s.epoch, s.pos = p.Epoch, p.From
		}
	default:
		k.t.Fatalf("piece for subscriber %+v that did not pull", s)
	}
	if p.From != s.pos || p.Epoch != s.epoch {
		k.t.Fatalf("piece from %d:%d for a subscriber at %d:%d", p.Epoch, p.From, s.epoch, s.pos)
	}
	for _, f := range p.Frames {
		if f.Offset != s.pos+1 || string(f.Text) != text(s.epoch, f.Offset) {
			k.t.Fatalf("subscriber at %d:%d was given %d (%s)", s.epoch, s.pos, f.Offset, f.Text)
		}
		s.pos++
	}
	s.state = simLive
	if !p.Live {
		if p.Next != s.pos || len(p.Frames) == 0 {
			k.t.Fatalf("next %d, position %d, %d frames", p.Next, s.pos, len(p.Frames))
		}
		s.state = simBehind
	}
}

func newSim(t *rapid.T, history bool) *sim {
	m := &sim{
		t: t, now: time.Unix(1_000_000, 0), early: make(map[uint64]*gatewayv1.Answer), subs: make(map[uint64]*simSub),
		truth: truth{epoch: 1, first: 1, history: history},
	}
	cfg := Default()
	cfg.Shards = 1
	cfg.Encode = func(_ string, epoch uint64, e *gatewayv1.BusEvent) []byte { return []byte(string(e.Data)) }
	cfg.HoldBytes = rapid.SampledFrom([]int{100, 400, 1 << 20}).Draw(t, "hold bytes")
	cfg.HeldBytes = cfg.HoldBytes
	cfg.ChunkBytes = rapid.SampledFrom([]int{8, 1 << 20}).Draw(t, "chunk bytes")
	cfg.RepairRate = rapid.SampledFrom([]int{1, 1000}).Draw(t, "repair rate")
	cfg.Log = slog.New(slog.DiscardHandler)
	tab := &Table{cfg: cfg, sinks: []Sink{simSink{m, 0}, simSink{m, 1}}, metrics: newMetrics(nil)}
	m.shard = newShard(0, tab, simBus{m}, simAsker{m})
	m.shard.step.jitter = func(d time.Duration) time.Duration { return d / 2 }
	return m
}

func (m *sim) pull(s *simSub) {
	p := Pull{Sink: s.sink, Conn: 7, Sub: s.id, Channel: simChannel, First: s.first, Last: s.last,
		MaxBytes: rapid.SampledFrom([]int{1, 10, 1 << 20}).Draw(m.t, "max bytes")}
	if s.asked || !s.first {
		p.HasPosition, p.Epoch, p.Offset, p.Last = true, s.epoch, s.pos, 0
	}
	s.first = false
	m.shard.inbox.post(command{kind: cmdPull, pull: p})
}

func (m *sim) turn() {
	m.shard.step.now = m.now
	m.shard.commands()
	m.shard.ring()
	if !m.now.Before(m.shard.heads.next) {
		m.shard.beat()
	}
	m.check()
}

func (m *sim) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.turn()
}

func (m *sim) publish(n int, lose bool) {
	env := &gatewayv1.Envelope{Channel: simChannel, Epoch: m.truth.epoch, Router: "r1", Base: m.truth.base}
	for range n {
		m.truth.head++
		env.Events = append(env.Events, m.truth.event(m.truth.head))
	}
	if !m.truth.history {
		m.truth.first = m.truth.head + 1
	}
	env.Head = m.truth.head
	b, _ := proto.Marshal(env)
	if !lose {
		m.bus = append(m.bus, b)
	}
}

func (m *sim) arrive(i int, keep bool) {
	b := m.bus[i]
	if !keep {
		m.bus = append(m.bus[:i:i], m.bus[i+1:]...)
	}
	m.shard.step.now = m.now
	m.shard.message(b)
	m.turn()
}

func (m *sim) reply(i int, how int) {
	ask := m.asks[i]
	m.asks = append(m.asks[:i:i], m.asks[i+1:]...)
	a := m.truth.answer(ask)
	switch how {
	case 1: // computed when it was asked
		a = m.early[ask.Id]
	case 2:
		a = &gatewayv1.Answer{Id: ask.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, RetryAfterMs: 100}
	case 3:
		a = &gatewayv1.Answer{Id: ask.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE}
	}
	delete(m.early, ask.Id)
	m.shard.Answer(a)
	m.turn()
}

func (m *sim) check() {
	held := 0
	for _, f := range m.shard.feeds {
		if f.known && f.delivered > f.seen {
			m.t.Fatalf("delivered %d > seen %d", f.delivered, f.seen)
		}
		w := f.work
		if w == nil {
			if f.known && f.delivered != f.seen {
				m.t.Fatalf("quiet with a hole: %d of %d", f.delivered, f.seen)
			}
			continue
		}
		size := 0
		for i, h := range w.held {
			size += frameSize(h)
			if f.known && h.Offset <= f.delivered+1 || i > 0 && h.Offset <= w.held[i-1].Offset {
				m.t.Fatalf("held %v behind %d", w.held, f.delivered)
			}
		}
		kept := 0
		for i, h := range w.recent {
			kept += frameSize(h)
			if h.Offset != f.delivered-uint64(len(w.recent)-1-i) {
				m.t.Fatalf("recent %v ends not at %d", w.recent, f.delivered)
			}
		}
		if size != w.heldSize || kept != w.keptSize || size+kept > m.shard.cfg.HoldBytes {
			m.t.Fatalf("held %d of %d, kept %d of %d", size, w.heldSize, kept, w.keptSize)
		}
		held += size + kept
	}
	if held != m.shard.step.held {
		m.t.Fatalf("shard holds %d, says %d", held, m.shard.step.held)
	}
	if len(m.shard.step.out) != 0 {
		m.t.Fatal("actions left")
	}
}

func (m *sim) some() *simSub {
	if len(m.subs) == 0 {
		return nil
	}
	for id := uint64(rapid.Uint64Range(0, m.next).Draw(m.t, "subscriber")); ; id++ {
		if s := m.subs[id%(m.next+1)]; s != nil {
			return s
		}
	}
}

func (m *sim) unsubscribe(s *simSub) {
	delete(m.subs, s.id)
	m.shard.inbox.post(command{kind: cmdCancel, pull: Pull{Sink: s.sink, Conn: 7, Sub: s.id, Channel: simChannel}})
	for _, other := range m.subs {
		if other.sink == s.sink {
			m.turn()
			return
		}
	}
	m.shard.inbox.post(command{kind: cmdLeave, pull: Pull{Sink: s.sink, Channel: simChannel}})
	m.turn()
}

// Whatever the bus loses, repeats and reorders, and whatever routers fail to
// answer: each subscriber sees the events of an epoch once, in order, without a
// hole that was not announced; holes are announced only if history has lost the
// range; and when all is well again everybody is at the head.
func TestEverySubscriberSeesEachEventOnceInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSim(t, rapid.IntRange(0, 3).Draw(t, "history") > 0)
		index := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				m.publish(rapid.IntRange(1, 4).Draw(t, "events"), rapid.IntRange(0, 3).Draw(t, "lost") == 0)
			},
			"repeat the head": func(t *rapid.T) { m.publish(0, false) },
			"arrive": func(t *rapid.T) {
				if len(m.bus) > 0 {
					m.arrive(index(len(m.bus), "message"), rapid.IntRange(0, 4).Draw(t, "twice") == 0)
				}
			},
			"arrive in order": func(t *rapid.T) {
				for len(m.bus) > 0 {
					m.arrive(0, false)
				}
			},
			"answer": func(t *rapid.T) {
				if len(m.asks) > 0 {
					m.reply(index(len(m.asks), "ask"), rapid.IntRange(0, 3).Draw(t, "how"))
				}
			},
			"answer well": func(t *rapid.T) {
				if len(m.asks) > 0 {
					m.reply(0, rapid.IntRange(0, 1).Draw(t, "how"))
				}
			},
			"time": func(t *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 300).Draw(t, "ms")) * time.Millisecond)
			},
			"long time": func(t *rapid.T) { m.pass(3 * time.Second) },
			"subscribe": func(t *rapid.T) {
				if len(m.subs) > 6 {
					return
				}
				m.next++
				s := &simSub{id: m.next, sink: index(2, "sink"), first: true}
				switch rapid.IntRange(0, 3).Draw(t, "kind") {
				case 1:
					s.asked, s.epoch, s.pos = true, m.truth.epoch, uint64(rapid.IntRange(0, int(m.truth.head)).Draw(t, "from"))
				case 2:
					s.asked, s.epoch, s.pos = true, m.truth.epoch-1, 3
				case 3:
					s.last = uint32(rapid.IntRange(1, 5).Draw(t, "last"))
				}
				m.subs[s.id] = s
				m.pull(s)
				m.turn()
			},
			"fall behind": func(t *rapid.T) {
				if s := m.some(); s != nil && s.state == simLive {
					s.state = simBehind
				}
			},
			"pull": func(t *rapid.T) {
				if s := m.some(); s != nil && s.state == simBehind {
					s.state = simPulls
					m.pull(s)
					m.turn()
				}
			},
			"unsubscribe": func(t *rapid.T) {
				if s := m.some(); s != nil && index(4, "really") == 0 {
					m.unsubscribe(s)
				}
			},
			"new epoch": func(t *rapid.T) {
				if index(5, "really") == 0 {
					m.truth.epoch++
					m.truth.head, m.truth.base, m.truth.first = 0, 0, 1
				}
			},
			"new epoch behind what history kept": func(t *rapid.T) {
				if index(5, "really") == 0 {
					m.truth.epoch++
					m.truth.head -= min(m.truth.head, uint64(rapid.IntRange(0, 3).Draw(t, "lost")))
					m.truth.base, m.truth.first = m.truth.head, min(m.truth.first, m.truth.head+1)
				}
			},
			"trim": func(t *rapid.T) {
				if index(3, "really") == 0 {
					m.truth.first = max(m.truth.first, uint64(rapid.IntRange(1, int(m.truth.head)+1).Draw(t, "first")))
				}
			},
			"reconnect": func(t *rapid.T) { m.recon++ },
			"hurry":     func(t *rapid.T) { m.shard.hurry() },
		})
		m.heal()
	})
}

// heal lets everything through and waits until all are where they should be.
func (m *sim) heal() {
	m.publish(1, true) // the newest is lost without a trace
	for range 4_000 {
		for len(m.bus) > 0 {
			m.arrive(0, false)
		}
		for len(m.asks) > 0 {
			m.reply(0, 0)
		}
		for _, s := range m.subs {
			if s.state == simBehind {
				s.state = simPulls
				m.pull(s)
			}
		}
		m.pass(beat)
		if m.allLive() {
			return
		}
	}
	for _, s := range m.subs {
		m.t.Logf("subscriber %+v", *s)
	}
	m.t.Fatalf("not at %d:%d after 100 s without faults", m.truth.epoch, m.truth.head)
}

func (m *sim) allLive() bool {
	for _, s := range m.subs {
		if s.state != simLive || s.epoch != m.truth.epoch || s.pos != m.truth.head {
			return false
		}
	}
	return true
}
