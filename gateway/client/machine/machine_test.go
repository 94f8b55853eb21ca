package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// world drives a machine with whatever a server, a network, a provider and an
// application may do, and checks after each step what must always hold.
type world struct {
	t   *rapid.T
	m   *Machine
	now time.Time

	link     int          // newest opened by the machine
	links    map[int]bool // those that live; true: open, false: dialling
	tokens   int          // questions to the provider that are not answered
	told     map[*Subscription]Position
	ended    map[*Subscription]bool
	finished map[*Call]bool
}

// dialling gives the link that is being opened, 0: none.
func (w *world) dialling() int {
	for n, open := range w.links {
		if !open {
			return n
		}
	}
	return 0
}

// open gives one of the links that are open, 0: none is.
func (w *world) open() int {
	var list []int
	for n, open := range w.links {
		if open {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return rapid.SampledFrom(list).Draw(w.t, "link")
}

func (w *world) channel() string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, "channel")
}

func (w *world) position() Position {
	return Position{rapid.SampledFrom([]string{"e", "f"}).Draw(w.t, "epoch"), rapid.Uint64Range(0, 20).Draw(w.t, "offset")}
}

// untilQuiet takes the actions and ticks until nothing is due.
func (w *world) untilQuiet() {
	for i := 0; ; i++ {
		for _, a := range w.m.Take() {
			w.action(a)
		}
		w.invariants()
		at := w.m.Wake()
		if at.IsZero() || at.After(w.now) {
			return
		}
		if i > 100 {
			w.t.Fatalf("the machine wants to be woken at once for ever: %+v", w.m.link)
		}
		w.m.Tick(w.now, rapid.Bool().Draw(w.t, "paused"))
	}
}

func (w *world) action(a Action) {
	switch a := a.(type) {
	case OpenLink:
		if w.dialling() > 0 || len(w.links) > 1 || len(w.links) == 1 && (w.m.link == nil || w.m.link.phase != up) {
			w.t.Fatalf("link %d is opened while %v live", a.Link, w.links)
		}
		if a.Time < attemptTime || a.Time > attemptTimeMax || a.Link <= w.link {
			w.t.Fatalf("%+v", a)
		}
		w.link, w.links[a.Link] = a.Link, false
	case Send:
		if !w.links[a.Link] {
			w.t.Fatalf("%s is sent on link %d, of %v", a.Text, a.Link, w.links)
		}
		if _, problem := wire.DecodeClient(a.Text); problem != nil {
			w.t.Fatalf("%s: %v", a.Text, problem)
		}
	case DropLink:
		if _, lives := w.links[a.Link]; !lives {
			w.t.Fatalf("link %d is dropped, which is gone", a.Link)
		}
		delete(w.links, a.Link)
	case AskToken:
		if w.tokens++; w.tokens > 1 {
			w.t.Fatal("the provider is asked twice at a time")
		}
	case FinishCall:
		if w.finished[a.Call] || a.Call.Err == nil == (a.Call.Reply == nil) {
			w.t.Fatalf("%+v", a.Call)
		}
		w.finished[a.Call] = true
	case TellSubscribed:
		if !a.Pending {
			w.moved(a.Sub, a.Position, "subscribed")
		}
	case TellEvent:
		if w.told[a.Sub].Epoch != a.Epoch || a.Offset != w.told[a.Sub].Offset+1 {
			w.t.Fatalf("event %v follows %v untold", a.Position, w.told[a.Sub])
		}
		w.told[a.Sub] = a.Position
	case TellGap:
		if a.From != w.told[a.Sub] {
			w.t.Fatalf("a gap from %v, the application is at %v", a.From, w.told[a.Sub])
		}
		w.told[a.Sub] = a.Position
	case TellEnd:
		if w.ended[a.Sub] {
			w.t.Fatal("a subscription ended twice")
		}
		w.ended[a.Sub] = true
	}
}

// moved: an answer may not take a position away without a gap.
func (w *world) moved(s *Subscription, to Position, why string) {
	if before, known := w.told[s]; known && before != to {
		w.t.Fatalf("%s moved %v to %v without a gap", why, before, to)
	}
	w.told[s] = to
}

func (w *world) invariants() {
	m := w.m
	known := 0
	for _, l := range []*link{m.link, m.ahead, m.old} {
		if l == nil {
			continue
		}
		known++
		if _, lives := w.links[l.n]; !lives || l.gone {
			w.t.Fatalf("link %d is kept, but gone", l.n)
		}
	}
	if known != len(w.links) {
		w.t.Fatalf("a link was forgotten without being dropped: %v", w.links)
	}
	if m.ahead != nil && m.old != nil || (m.ahead != nil || m.old != nil) && (m.link == nil || m.link.phase != up) {
		w.t.Fatalf("links %+v %+v %+v", m.link, m.ahead, m.old)
	}
	if (m.state == Connected) != (m.link != nil && m.link.phase == up) {
		w.t.Fatalf("%v with link %+v", m.state, m.link)
	}
	if m.state == Disconnected && (m.link != nil || len(m.waiting) > 0) {
		w.t.Fatal("a client that has ended still has something open")
	}
	untaken, held := 0, 0
	for _, s := range m.subs {
		if s.at.phase != idle && m.link == nil || s.was.phase != idle && m.old == nil || s.was.phase != idle && s.was.phase != live {
			w.t.Fatalf("%s is %v, %v without a link", s.channel, s.at.phase, s.was.phase)
		}
		if s.untaken {
			untaken++
		}
		for _, list := range [][]news{s.at.held, s.was.held} {
			for _, n := range list {
				held += n.size()
			}
		}
	}
	if untaken != m.untaken || held != m.heldBytes || m.old == nil && (untaken > 0 || held > 0) {
		w.t.Fatalf("%d of %d untaken, %d of %d bytes held", untaken, m.untaken, held, m.heldBytes)
	}
}

func (w *world) frame() *clientv1.ServerFrame {
	f := &clientv1.ServerFrame{Id: rapid.SampledFrom([]uint32{0, w.m.lastID, w.m.lastID, max(w.m.lastID, 1) - 1}).Draw(w.t, "id")}
	number := rapid.Uint32Range(0, 100_000)
	fail := func() *clientv1.Error {
		e := &clientv1.Error{Code: clientv1.ErrorCode(rapid.IntRange(1, 10).Draw(w.t, "code")), Temporary: rapid.Bool().Draw(w.t, "temporary")}
		if rapid.Bool().Draw(w.t, "wait") {
			ms := number.Draw(w.t, "ms")
			e.RetryAfterMs = &ms
		}
		return e
	}
	entry := func() *clientv1.SubscriptionEntry {
		p := w.position()
		e := &clientv1.SubscriptionEntry{Channel: w.channel(), Epoch: p.Epoch, Offset: p.Offset}
		s := w.m.subs[e.Channel]
		switch rapid.IntRange(0, 4).Draw(w.t, "entry") {
		case 0:
			e.Pending = true
		case 1:
			e.Error = fail()
		case 2: // what an honest server recovers has the client's epoch
			if s != nil && s.known {
				e.Recovered, e.Epoch, e.Offset = true, s.pos.Epoch, s.pos.Offset+3
			}
		case 3: // and it tells `from` to those who asked for the last n
			if s != nil && !s.known && s.last > 0 {
				e.Recovered, e.From = true, &p.Offset
			}
		}
		return e
	}
	switch rapid.IntRange(0, 13).Draw(w.t, "frame") {
	case 0, 1, 2:
		c := &clientv1.Connected{PingIntervalMs: number.Draw(w.t, "ping"), PongTimeoutMs: number.Draw(w.t, "pong"), RetryWindowMs: number.Draw(w.t, "window"), MaxFrameBytes: 1000 + number.Draw(w.t, "max")}
		for range rapid.IntRange(0, 3).Draw(w.t, "n") {
			c.Subscriptions = append(c.Subscriptions, entry())
		}
		if rapid.Bool().Draw(w.t, "expires") {
			ms := uint64(number.Draw(w.t, "ms"))
			c.ExpiresInMs = &ms
		}
		f.Frame = &clientv1.ServerFrame_Connected{Connected: c}
		c.Node = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(w.t, "node")
		for _, l := range []*link{w.m.link, w.m.ahead} {
			if l != nil {
				f.Id = l.connectID
			}
		}
	case 3, 4:
		f.Frame = &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{entry()}}}
	case 5:
		f.Frame = &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: w.channel(), Offset: w.position().Offset}}
	case 6:
		p := w.position()
		f.Frame = &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{Channel: w.channel(), Epoch: p.Epoch, Offset: p.Offset}}
	case 7:
		e := fail()
		if rapid.Bool().Draw(w.t, "close") {
			code := rapid.SampledFrom([]uint32{4000, 4001, 4005, 4006, 4100, 4200}).Draw(w.t, "close code")
			e.Close = &code
		}
		f.Frame = &clientv1.ServerFrame_Error{Error: e}
	case 8:
		f.Frame = &clientv1.ServerFrame_Unsubscribed{Unsubscribed: &clientv1.Unsubscribed{Channel: w.channel()}}
	case 9:
		f.Frame = &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{RetryAfterMs: number.Draw(w.t, "ms"), Url: "ws://other.test/v1/ws"}}
	case 10:
		f.Frame = &clientv1.ServerFrame_Published{Published: &clientv1.Published{}}
	case 11:
		f.Frame = &clientv1.ServerFrame_Refreshed{Refreshed: &clientv1.Refreshed{Ticket: "refreshed"}}
	case 12, 13:
		f.Frame = w.reconnect()
	}
	return f
}

// comeUp: the newest link gets as far as connected.
func (w *world) comeUp() {
	if n := w.dialling(); n != 0 {
		w.links[n] = true
		w.m.Opened(w.now, n)
		w.untilQuiet()
	}
	for _, l := range []*link{w.m.link, w.m.ahead} {
		if l == nil || l.phase != greeting {
			continue
		}
		c := &clientv1.Connected{Node: fmt.Sprint("n", l.n), Ticket: "connected"}
		for _, g := range l.greeted {
			s := g.sub
			e := &clientv1.SubscriptionEntry{Channel: s.channel, Epoch: "e", Offset: rapid.Uint64Range(0, 5).Draw(w.t, "head")}
			if g.pos.Epoch == "e" && rapid.Bool().Draw(w.t, "recovered") {
				e.Recovered, e.Offset = true, g.pos.Offset+2
			}
			c.Subscriptions = append(c.Subscriptions, e)
		}
		w.m.Frame(w.now, l.n, &clientv1.ServerFrame{Id: l.connectID, Frame: &clientv1.ServerFrame_Connected{Connected: c}})
		w.untilQuiet()
	}
}

func (w *world) reconnect() *clientv1.ServerFrame_Reconnect {
	return &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
		AfterMs: rapid.Uint32Range(0, 2000).Draw(w.t, "after"), DeadlineMs: rapid.Uint32Range(0, 60_000).Draw(w.t, "deadline"), Ticket: "moved",
	}}
}

// Whatever happens in whatever order: one attempt at a time (and one connection beside it), one question to the
// provider at a time, nothing sent into a link that is not open, every event in
// order or announced as lost, every call answered at most once, no busy loop.
func TestMachineKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, m: newMachine("ws://a.test/v1/ws", "ws://b.test/v1/ws"), now: time.Unix(1_764_470_000, 0),
			links: map[int]bool{}, told: map[*Subscription]Position{}, ended: map[*Subscription]bool{}, finished: map[*Call]bool{},
		}
		w.m.cfg.HasProvider = rapid.Bool().Draw(t, "provider")
		if rapid.Bool().Draw(t, "foreign") {
			w.m.cfg.Foreign = &Foreign{AttemptTime: attemptTime, Pause: func(int) time.Duration { return time.Second }}
		}
		w.m.cfg.Random = func(d time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, max(int64(d)-1, 0)).Draw(t, "random"))
		}
		act := func(step func()) func(*rapid.T) {
			return func(t *rapid.T) {
				w.t = t
				step()
				w.untilQuiet()
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": act(func() { w.m.Start(w.now) }),
			"stop":  act(func() { w.m.Stop(ErrClosed) }),
			"time passes": act(func() {
				w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(w.t, "d")))
				w.m.Tick(w.now, false)
			}),
			"until due": act(func() {
				if at := w.m.Wake(); at.After(w.now) {
					w.now = at
					w.m.Tick(w.now, false)
				}
			}),
			"come up": act(func() {
				w.m.Start(w.now)
				w.untilQuiet()
				if w.tokens > 0 {
					w.tokens--
					w.m.Token(w.now, "t", nil)
					w.untilQuiet()
				}
				if at := w.m.Wake(); w.m.link == nil && at.After(w.now) {
					w.now = at
					w.m.Tick(w.now, false)
					w.untilQuiet()
				}
				w.comeUp()
			}),
			"move": act(func() {
				l := w.m.link
				if l == nil || l.phase != up {
					return
				}
				w.m.Frame(w.now, l.n, &clientv1.ServerFrame{Frame: w.reconnect()})
				w.untilQuiet()
				if at := w.m.moveAt(); !at.IsZero() {
					w.now = at
					w.m.Tick(w.now, false)
					w.untilQuiet()
				}
				w.comeUp()
			}),
			"answer": act(func() { // of an honest server
				for _, s := range w.m.inOrder() {
					st := s.at
					if w.m.link == nil || st.phase != asked && st.phase != pending {
						continue
					}
					e := &clientv1.SubscriptionEntry{Channel: s.channel, Epoch: "e", Offset: 5}
					if st.asked.Epoch == "e" {
						e.Recovered, e.Offset = true, st.asked.Offset+2
					}
					f := &clientv1.ServerFrame{Id: st.askID, Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{e}}}}
					if st.phase == pending {
						f.Id = 0
					}
					w.m.Frame(w.now, w.m.link.n, f)
					w.untilQuiet()
				}
			}),
			"event": act(func() {
				if s, n := w.m.subs[w.channel()], w.open(); s != nil && n != 0 {
					offset := s.pos.Offset + rapid.Uint64Range(0, 2).Draw(w.t, "ahead")
					w.m.Frame(w.now, n, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: s.channel, Offset: offset}}})
				}
			}),
			"opened": act(func() {
				if n := w.dialling(); n != 0 {
					w.links[n] = true
					w.m.Opened(w.now, n)
				}
			}),
			"refused": act(func() {
				if n := w.dialling(); n != 0 {
					delete(w.links, n)
					w.m.Refused(w.now, n, Refusal{Err: errors.New("no"), WaitIsTold: rapid.Bool().Draw(w.t, "told"), Wait: time.Second})
				}
			}),
			"lost": act(func() {
				if n := w.open(); n != 0 {
					delete(w.links, n)
					w.m.Lost(w.now, n, rapid.SampledFrom([]wire.CloseCode{0, 1000, 1002, 4001, 4005, 4006, 4100, 4200}).Draw(w.t, "code"), nil)
				}
			}),
			"late news of an old link": act(func() {
				for n := range w.link {
					if _, lives := w.links[n]; lives {
						continue
					}
					w.m.Opened(w.now, n)
					w.m.Lost(w.now, n, 4200, nil)
					w.m.Frame(w.now, n, &clientv1.ServerFrame{Frame: w.reconnect()})
				}
			}),
			"frame": act(func() {
				if n := w.open(); n != 0 {
					w.m.Frame(w.now, n, w.frame())
				}
			}),
			"token": act(func() {
				if w.tokens > 0 {
					w.tokens--
					err := rapid.SampledFrom([]error{nil, nil, nil, errors.New("later"), ErrNoToken}).Draw(w.t, "err")
					w.m.Token(w.now, "t", err)
				}
			}),
			"subscribe": act(func() {
				s := &Subscription{channel: w.channel(), last: rapid.Uint32Range(0, 2).Draw(w.t, "last")}
				if rapid.Bool().Draw(w.t, "since") {
					s.known, s.pos = true, w.position()
					w.told[s] = s.pos
				}
				_ = w.m.Subscribe(w.now, s)
			}),
			"unsubscribe": act(func() {
				if s := w.m.subs[w.channel()]; s != nil {
					w.m.Unsubscribe(s)
				}
			}),
			"call": act(func() {
				w.m.Call(&Call{Resend: rapid.Bool().Draw(w.t, "resend"), Frame: &clientv1.ClientFrame{
					Frame: &clientv1.ClientFrame_Publish{Publish: &clientv1.Publish{Channel: "a", Data: []byte("1")}},
				}})
			}),
		})
	})
}
