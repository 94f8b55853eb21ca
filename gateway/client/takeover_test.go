package client

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

const (
	goElsewhere = `{"type":"reconnect","reason":"drain","after_ms":400,"deadline_ms":20000,"url":"ws://other.test/v1/ws","ticket":"moved"}`
	goAnywhere  = `{"type":"reconnect","reason":"drain","after_ms":0,"deadline_ms":20000,"ticket":"moved"}`
)

// moving is a client with one channel, at e:4, on edge-1, that hears moves and
// states.
type moving struct {
	c      *Client
	l      *log
	old    *peer
	states chan StateChange
	moves  chan Move
}

func newMoving(t *testing.T, s *server, opts ...Option) *moving {
	m := &moving{l: newLog(), states: make(chan StateChange, 100), moves: make(chan Move, 100)}
	m.c = s.client(append(opts, WithOnState(func(ch StateChange) { m.states <- ch }), WithOnMove(func(v Move) { m.moves <- v }))...)
	t.Cleanup(func() { m.c.Close() })
	mustSubscribe(t, m.c, "a", m.l)
	m.c.Start()
	m.old = s.accept()
	m.old.hello("edge-1", "first", `{"channel":"a","epoch":"e","offset":4,"recovered":false}`)
	m.l.expect(t, "subscribed e:4 recovered=false")
	time.Sleep(stableUp)
	for range 2 {
		<-m.states
	}
	return m
}

// uninterrupted: the application has seen no other state, and n moves.
func (m *moving) uninterrupted(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	if len(m.states) > 0 || m.c.State() != Connected {
		t.Errorf("%v, and %d changes of state", m.c.State(), len(m.states))
	}
	if s := m.c.Stats(); s.Interruptions != 0 || int(s.Moves) != n {
		t.Errorf("%+v", s)
	}
}

// The new connection is up before the old one ends; whichever brings an event first,
// the application hears it once; it sees nothing else of the move.
func TestMoveIsNotSeen(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		told := time.Now()
		m.old.send(0, event("a", 5), goElsewhere)
		p := s.accept()
		if d := time.Since(told); d != 400*time.Millisecond || p.addr != "other.test:80" || p.ticket() != "moved" {
			t.Errorf("came after %v to %s with %q", d, p.addr, p.ticket())
		}
		id := p.expect(`{"type":"connect","id":$,"ticket":"moved","attempt":2,"subscriptions":[{"channel":"a","epoch":"e","offset":5}],"client":"spillway-go"}`)
		// Not connected yet: commands go to the old one.
		call := m.c.publishLater(t, "1", Key("k"))
		early := m.old.expect(`{"type":"publish","id":$,"channel":"a","data":1,"key":"k"}`)
		m.old.send(early, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":6}`, event("a", 6))
		if got := <-call; got.err != nil || got.pos.Offset != 6 {
			t.Errorf("%+v", got)
		}
		p.answerHello(id, "edge-2", "second", `{"channel":"a","epoch":"e","offset":8,"recovered":true}`)
		p.send(0, event("a", 6), event("a", 7))
		m.old.send(0, event("a", 7))
		synctest.Wait()
		if info := m.c.Info(); info.Node != "edge-2" {
			t.Errorf("%+v", info)
		}
		m.l.expect(t, `event e:5 {"n":5}`, `event e:6 {"n":6}`, `event e:7 {"n":7}`)
		// Still one to come: the old one stays.
		time.Sleep(3 * time.Second)
		m.old.send(0, event("a", 8))
		m.old.expectClose(1000)
		p.send(0, event("a", 8), event("a", 9))
		m.l.expect(t, `event e:8 {"n":8}`, `event e:9 {"n":9}`)
		synctest.Wait()
		m.l.nothing(t)
		m.uninterrupted(t, 1)
		if v := <-m.moves; v.From != "edge-1" || v.To != "edge-2" || v.Err != nil || v.Took != 400*time.Millisecond || v.Attempts != 1 || v.Reason != "drain" {
			t.Errorf("%+v", v)
		}
		go p.drain()
	})
}

func TestSubscriptionsWaitForTheNewConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		other, again := newLog(), newLog()
		m.old.send(0, goAnywhere)
		p := s.accept()
		connect := p.next()
		mustSubscribe(t, m.c, "b", other)
		m.c.Subscription("a").Unsubscribe()
		mustSubscribe(t, m.c, "a", again)
		synctest.Wait()
		p.answerHello(connect.Id, "edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		p.expect(`{"type":"unsubscribe","id":$,"channel":"a"}`)
		id := p.expect(`{"type":"subscribe","id":$,"subscriptions":[{"channel":"b"},{"channel":"a"}]}`)
		p.send(0, event("a", 5)) // for the one that has ended
		p.send(id, `{"type":"subscribed","id":$,"subscriptions":[{"channel":"a","epoch":"e","offset":5,"recovered":false},{"channel":"b","epoch":"f","offset":0,"recovered":false}]}`)
		again.expect(t, "subscribed e:5 recovered=false")
		other.expect(t, "subscribed f:0 recovered=false")
		m.old.expectClose(1000) // without having heard of either
		m.l.nothing(t)
		m.uninterrupted(t, 1)
		go p.drain()
	})
}

func TestSubscriptionsThatWaitedGoToTheOldConnectionIfTheMoveFails(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		nc := s.acceptRaw()
		l := newLog()
		mustSubscribe(t, m.c, "b", l)
		m.c.Subscription("a").Unsubscribe()
		synctest.Wait()
		nc.Close()
		m.old.expect(`{"type":"unsubscribe","id":$,"channel":"a"}`)
		id := m.old.expect(`{"type":"subscribe","id":$,"channel":"b"}`)
		m.old.send(id, `{"type":"subscribed","id":$,"channel":"b","epoch":"f","offset":0,"recovered":false}`)
		l.expect(t, "subscribed f:0 recovered=false")
		p := s.accept()
		p.expect(`{"type":"connect","id":$,"ticket":"moved","attempt":3,"subscriptions":[{"channel":"b","epoch":"f","offset":0}],"client":"spillway-go"}`)
		go m.old.drain()
		go p.drain()
	})
}

// Where nothing can be recovered the old connection still brings what the new one
// joined too late for.
func TestRecoveredFalseCountsOnlyIfTheOldConnectionEndedBefore(t *testing.T) {
	for _, oldLives := range []bool{true, false} {
		t.Run(fmt.Sprint("old lives ", oldLives), func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				m := newMoving(t, s)
				m.old.send(0, goAnywhere)
				p := s.accept()
				p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":6,"recovered":false,"reload_after_ms":50}`)
				p.send(0, event("a", 7))
				synctest.Wait()
				m.l.nothing(t)
				m.old.send(0, event("a", 5))
				m.l.expect(t, `event e:5 {"n":5}`)
				if oldLives {
					m.old.send(0, event("a", 6))
					m.l.expect(t, `event e:6 {"n":6}`, `event e:7 {"n":7}`)
					m.old.expectClose(1000)
				} else {
					m.old.cut()
					m.l.expect(t, "gap e:5 to e:6 not_recovered 50ms", `event e:7 {"n":7}`)
				}
				m.uninterrupted(t, 1)
				go p.drain()
			})
		})
	}
}

// The old connection stays for open commands, 5 s at most; then reads and keyed
// publishes are sent again, of any other the outcome is unknown.
func TestOpenCommandsKeepTheOldConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		keyed := m.c.publishLater(t, "1", Key("k"))
		plain := m.c.publishLater(t, "2")
		m.old.send(0, goAnywhere)
		m.old.next()
		m.old.next()
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		up := time.Now()
		m.old.expectClose(1000)
		if d := time.Since(up); d != lastTime {
			t.Errorf("the old connection lived for %v", d)
		}
		if got := <-plain; got.err != ErrOutcomeUnknown {
			t.Errorf("%+v", got)
		}
		id := p.expect(`{"type":"publish","id":$,"channel":"a","data":1,"key":"k"}`)
		p.send(id, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":5}`)
		if got := <-keyed; got.err != nil {
			t.Errorf("%+v", got)
		}
		m.uninterrupted(t, 1)
		go p.drain()
	})
}

// pending on the new connection is no interruption while the old one delivers.
func TestPendingIsBridgedByTheOldConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","pending":true}`)
		go p.drain()
		time.Sleep(15 * time.Second)
		m.old.send(0, event("a", 5))
		m.l.expect(t, `event e:5 {"n":5}`)
		p.send(0, `{"type":"subscribed","channel":"a","epoch":"e","offset":5,"recovered":true}`, event("a", 5), event("a", 6))
		m.old.expectClose(1000)
		m.l.expect(t, `event e:6 {"n":6}`)
		m.l.nothing(t)
		m.uninterrupted(t, 1)
	})
}

// The move began before there was a position, and the connection that then brought one
// ended before the new one had a verdict: from its head on would be a loss that history
// has, so it is asked again.
func TestAPositionThatCameDuringTheMoveIsToldToTheNewConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		mustSubscribe(t, c, "a", l)
		c.Start()
		old := s.accept()
		old.hello("edge-1", "first", `{"channel":"a","pending":true}`)
		l.expect(t, "pending")
		old.send(0, goAnywhere)
		p := s.accept()
		id := p.expect(`{"type":"connect","id":$,"ticket":"moved","attempt":2,"subscriptions":[{"channel":"a"}],"client":"spillway-go"}`)
		old.send(0, `{"type":"subscribed","channel":"a","epoch":"e","offset":4,"recovered":false}`, event("a", 5))
		l.expect(t, "subscribed e:4 recovered=false", `event e:5 {"n":5}`)
		p.answerHello(id, "edge-2", "second", `{"channel":"a","pending":true}`)
		synctest.Wait()
		old.nc.Close()
		l.expect(t, "pending")
		p.send(0, `{"type":"subscribed","channel":"a","epoch":"e","offset":9,"recovered":false}`, event("a", 10))
		end := p.expect(`{"type":"unsubscribe","id":$,"channel":"a"}`)
		again := p.expect(`{"type":"subscribe","id":$,"channel":"a","epoch":"e","offset":5}`)
		p.send(end, `{"type":"unsubscribed","id":$,"channel":"a"}`)
		p.send(again, `{"type":"subscribed","id":$,"channel":"a","epoch":"e","offset":10,"recovered":true}`,
			event("a", 6), event("a", 7), event("a", 8), event("a", 9), event("a", 10))
		l.expect(t, "subscribed e:5 recovered=true", `event e:6 {"n":6}`, `event e:7 {"n":7}`, `event e:8 {"n":8}`, `event e:9 {"n":9}`, `event e:10 {"n":10}`)
		l.nothing(t)
		if s := c.Stats(); s.Gaps != 0 {
			t.Errorf("%+v", s)
		}
		go p.drain()
	})
}

// At the edge's deadline the old connection is left, whatever is not taken over.
func TestTheDeadlineEndsTheOldConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		told := time.Now()
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","pending":true}`)
		go p.drain()
		m.old.expectClose(1000)
		if d := time.Since(told); d != 20*time.Second {
			t.Errorf("the old connection lived for %v", d)
		}
		m.l.expect(t, "pending")
		m.uninterrupted(t, 1)
	})
}

// A move that is refused, fails, or leads to the same node is repeated: as told, else
// backing off; the hint is followed once, the pass is offered once.
func TestMoveIsRepeated(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goElsewhere)
		p := s.accept() // the hint
		connect := p.next()
		p.send(0, `{"type":"busy","retry_after_ms":3000,"scope":"node","url":"ws://third.test/v1/ws","ticket":"pass"}`)
		p.close(4010)
		_ = connect
		before := time.Now()
		p = s.accept()
		if d := time.Since(before); d != 3*time.Second || p.addr != "third.test:80" || p.ticket() != "pass" {
			t.Errorf("after %v at %s with %q", d, p.addr, p.ticket())
		}
		p.expect(`{"type":"connect","id":$,"ticket":"moved","attempt":3,"subscriptions":[{"channel":"a","epoch":"e","offset":4}],"client":"spillway-go"}`)
		p.cut()
		before = time.Now()
		p = s.accept()
		if d := time.Since(before); d != 250*time.Millisecond || p.addr != "edge.test:80" || p.ticket() != "moved" {
			t.Errorf("after %v at %s with %q", d, p.addr, p.ticket())
		}
		// The edge that is to be left counts the new connection now: it takes over.
		same := p
		same.hello("edge-1", "same", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		before = time.Now()
		m.old.expectClose(1000)
		p = s.accept()
		if d := time.Since(before); d != 500*time.Millisecond || p.ticket() != "same" {
			t.Errorf("after %v with %q", d, p.ticket())
		}
		p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		same.expectClose(1000)
		m.uninterrupted(t, 1)
		for _, failed := range []bool{true, true, true, false} {
			if v := <-m.moves; (v.Err != nil) != failed {
				t.Errorf("%+v", v)
			}
		}
		if st := m.c.Stats(); st.MoveFailures != 3 || st.Attempts != 5 || st.Busy != 1 || st.Failures != 2 || st.Resumes != 3 {
			t.Errorf("%+v", st)
		}
		go p.drain()
	})
}

// No attempt begins after the deadline; what was told for it counts for the attempt
// that follows the close.
func TestMoveThatComesTooLateIsGivenUp(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goElsewhere)
		p := s.accept()
		p.next()
		p.send(0, `{"type":"busy","retry_after_ms":30000,"scope":"node","ticket":"pass"}`)
		p.close(4010)
		refused := time.Now()
		go func() {
			time.Sleep(20 * time.Second)
			m.old.close(4001)
		}()
		p = s.accept()
		if d := time.Since(refused); d != 30*time.Second || p.ticket() != "pass" {
			t.Errorf("came after %v with %q", d, p.ticket())
		}
		go p.drain()
	})
}

func TestNewConnectionThatDiesIsReplacedByTheOldOne(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":6,"recovered":true}`)
		p.send(0, event("a", 5))
		m.l.expect(t, `event e:5 {"n":5}`)
		p.cut()
		synctest.Wait()
		m.old.send(0, event("a", 5), event("a", 6))
		m.l.expect(t, `event e:6 {"n":6}`)
		call := m.c.publishLater(t, "1")
		id := m.old.expect(`{"type":"publish","id":$,"channel":"a","data":1}`)
		m.old.send(id, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":7}`)
		if got := <-call; got.err != nil {
			t.Errorf("%+v", got)
		}
		p = s.accept()
		id = p.expect(`{"type":"connect","id":$,"ticket":"second","attempt":3,"subscriptions":[{"channel":"a","epoch":"e","offset":6}],"client":"spillway-go"}`)
		p.answerHello(id, "edge-3", "third", `{"channel":"a","epoch":"e","offset":6,"recovered":true}`)
		m.old.expectClose(1000)
		m.uninterrupted(t, 1)
		if st := m.c.Stats(); st.FallBacks != 1 {
			t.Errorf("%+v", st)
		}
		go p.drain()
	})
}

// An old connection that is lost while the new one is being opened leaves that as the
// attempt to come back: there is no second one.
func TestOldConnectionThatDiesDuringTheAttempt(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		p := s.accept()
		connect := p.next()
		m.old.send(0, event("a", 5))
		m.l.expect(t, `event e:5 {"n":5}`)
		m.old.cut()
		if ch := <-m.states; ch.To != Reconnecting {
			t.Errorf("%v", ch)
		}
		p.answerHello(connect.Id, "edge-2", "second", `{"channel":"a","epoch":"e","offset":5,"recovered":false}`)
		m.l.expect(t, "subscribed e:5 recovered=true") // the old one brought what the new one could not
		p.send(0, event("a", 6))
		m.l.expect(t, `event e:6 {"n":6}`)
		if len(s.dials) != 2 || m.c.State() != Connected {
			t.Errorf("%d dials, %v", len(s.dials), m.c.State())
		}
		go p.drain()
	})
}

// What does not fit the memory for a loss that may yet be filled is delivered, and
// the loss told.
func TestHeldEventsAreBounded(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":9,"recovered":false}`)
		go func() {
			for i := 10; i < 10+maxHeld/250; i++ {
				p.send(0, event("a", i))
			}
		}()
		m.l.expect(t, "gap e:4 to e:9 not_recovered 0s", `event e:10 {"n":10}`)
		for i := 11; i < 10+maxHeld/250; i++ {
			m.l.expect(t, fmt.Sprintf(`event e:%d {"n":%d}`, i, i))
		}
		m.old.expectClose(1000)
		go p.drain()
	})
}
