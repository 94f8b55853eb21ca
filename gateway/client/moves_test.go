package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// A new edge that leaves at once is left when it has taken over.
func TestMoveAfterMove(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		p := m.old
		for i := range 5 {
			p.send(0, goAnywhere)
			next := s.accept()
			next.hello(fmt.Sprint("edge-", i+2), fmt.Sprint("ticket-", i), `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
			p.expectClose(1000)
			p = next
		}
		m.uninterrupted(t, 5)
		go p.drain()
	})
}

// A hint that comes while an attempt is under way is followed when that attempt fails,
// or leads back to the same edge.
func TestANewerHintOutlivesTheAttemptUnderWay(t *testing.T) {
	for name, end := range map[string]func(m *moving, p *peer) *peer{
		"fails": func(m *moving, p *peer) *peer { p.cut(); return m.old },
		"leads back": func(m *moving, p *peer) *peer {
			p.hello("edge-1", "same", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
			m.old.expectClose(1000)
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				m := newMoving(t, s)
				m.old.send(0, goAnywhere)
				p := s.accept()
				m.old.send(0, goElsewhere)
				synctest.Wait()
				from := end(m, p)
				p = s.accept()
				if p.addr != "other.test:80" {
					t.Errorf("came to %s", p.addr)
				}
				p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
				from.expectClose(1000)
				m.uninterrupted(t, 1)
				go p.drain()
			})
		})
	}
}

func TestStopDuringAMoveClosesBoth(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","pending":true}`)
		p.send(0, `{"type":"error","code":"revoked","message":"gone","temporary":false,"close":4200}`)
		go p.close(4200)
		m.old.expectClose(1000)
		var why *CloseError
		if ch := <-m.states; ch.To != Disconnected || !errors.As(ch.Err, &why) || why.Code != 4200 {
			t.Errorf("%v", ch)
		}
	})
}

// Edges hear of a new epoch one after the other. Whichever is behind, the application
// is led forward once, and sees no event twice.
func TestEpochThatBeginsDuringAMove(t *testing.T) {
	const epoch = `{"type":"gap","channel":"a","epoch":"f","offset":0,"reason":"epoch","reload_after_ms":0}`
	t.Run("the new edge knows first", func(t *testing.T) {
		scene(t, func(t *testing.T, s *server) {
			m := newMoving(t, s)
			m.old.send(0, goAnywhere)
			p := s.accept()
			p.hello("edge-2", "second", `{"channel":"a","epoch":"f","offset":2,"recovered":false}`)
			p.send(0, event("a", 3))
			m.old.send(0, event("a", 5), epoch, event("a", 1), event("a", 2), event("a", 3))
			m.l.expect(t, `event e:5 {"n":5}`, "gap e:5 to f:0 epoch 0s",
				`event f:1 {"n":1}`, `event f:2 {"n":2}`, `event f:3 {"n":3}`)
			m.old.expectClose(1000)
			m.uninterrupted(t, 1)
			m.l.nothing(t)
			go p.drain()
		})
	})
	t.Run("the old edge knows first", func(t *testing.T) {
		scene(t, func(t *testing.T, s *server) {
			m := newMoving(t, s)
			m.old.send(0, goAnywhere)
			p := s.accept()
			connect := p.next()
			m.old.send(0, epoch, event("a", 1))
			m.l.expect(t, "gap e:4 to f:0 epoch 0s", `event f:1 {"n":1}`)
			p.answerHello(connect.Id, "edge-2", "second", `{"channel":"a","epoch":"e","offset":5,"recovered":true}`)
			p.send(0, event("a", 5)) // of an epoch that is over
			synctest.Wait()
			m.l.nothing(t)
			p.send(0, epoch, event("a", 1), event("a", 2))
			m.old.expectClose(1000)
			m.l.expect(t, `event f:2 {"n":2}`)
			m.uninterrupted(t, 1)
			go p.drain()
		})
	})
	t.Run("the old edge knows first and dies", func(t *testing.T) {
		scene(t, func(t *testing.T, s *server) {
			m := newMoving(t, s)
			m.old.send(0, goAnywhere)
			p := s.accept()
			connect := p.next()
			m.old.send(0, epoch, event("a", 1))
			m.l.expect(t, "gap e:4 to f:0 epoch 0s", `event f:1 {"n":1}`)
			p.answerHello(connect.Id, "edge-2", "second", `{"channel":"a","epoch":"e","offset":5,"recovered":false}`)
			synctest.Wait()
			m.old.cut()
			synctest.Wait()
			p.send(0, epoch, event("a", 1), event("a", 2))
			m.l.expect(t, "gap f:1 to e:5 not_recovered 0s", "gap e:5 to f:1 epoch 0s", `event f:2 {"n":2}`)
			go p.drain()
		})
	})
}

// What the new edge refuses for a while goes on over the old one meanwhile; what it
// refuses for good ends.
func TestSubscriptionsThatTheNewEdgeRefuses(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		no := newLog()
		mustSubscribe(t, m.c, "no", no)
		id := m.old.expect(`{"type":"subscribe","id":$,"channel":"no"}`)
		m.old.send(id, `{"type":"subscribed","id":$,"channel":"no","epoch":"g","offset":1,"recovered":false}`)
		no.expect(t, "subscribed g:1 recovered=false")
		m.old.send(0, goAnywhere)
		p := s.accept()
		p.hello("edge-2", "second", `{"channel":"a","error":{"code":"rate_limited","message":"","temporary":true,"retry_after_ms":3000}}`,
			`{"channel":"no","error":{"code":"forbidden","message":"not yours","temporary":false}}`)
		no.expect(t, "end forbidden: not yours")
		m.old.send(0, event("a", 5), event("no", 2))
		m.l.expect(t, `event e:5 {"n":5}`)
		id = p.expect(`{"type":"subscribe","id":$,"channel":"a","epoch":"e","offset":5}`)
		p.send(id, `{"type":"subscribed","id":$,"channel":"a","epoch":"e","offset":5,"recovered":true}`)
		m.old.expectClose(1000)
		m.l.nothing(t)
		no.nothing(t)
		m.uninterrupted(t, 1)
		go p.drain()
	})
}

// A move that wants new credentials asks the provider once and goes on.
func TestMoveWithNewCredentials(t *testing.T) {
	for name, refuse := range map[string]func(*peer){
		"on the same connection": func(p *peer) {
			c := p.next()
			p.send(c.Id, `{"type":"error","id":$,"code":"expired","message":"","temporary":false}`)
			p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		},
		"after a close": func(p *peer) {
			p.next()
			p.send(0, `{"type":"error","code":"expired","message":"","temporary":false,"close":4100}`)
			p.close(4100)
			p = p.s.accept()
			p.hello("edge-2", "second", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				var calls atomic.Int32
				m := newMoving(t, s, WithToken(counter(&calls)))
				m.old.send(0, goAnywhere)
				refuse(s.accept())
				m.old.expectClose(1000)
				m.uninterrupted(t, 1)
				if calls.Load() != 2 {
					t.Errorf("%d calls", calls.Load())
				}
			})
		})
	}
}

// A URL is left for its own silence, not for that of the edges it hints at.
func TestSilentHintsDoNotCostTheURL(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var hosts []string
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			hosts = append(hosts, addr)
			if addr == "edge.test:80" {
				return s.dial(ctx, network, addr)
			}
			return nil, errors.New("no route")
		}
		m := newMoving(t, s, WithDialer(dial), WithURLs("ws://far.test/v1/ws"))
		for range 6 {
			time.Sleep(stableUp)
			m.old.send(0, goElsewhere)
			p := s.accept() // after the hint
			p.hello("edge-1", "same", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
			m.old.expectClose(1000)
			p.cut()
			m.old = s.accept()
			m.old.hello("edge-1", "again", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		}
		synctest.Wait()
		hints := 0
		for _, h := range hosts {
			switch h {
			case "far.test:80":
				t.Errorf("%v", hosts)
			case "other.test:80":
				hints++
			}
		}
		if hints != 6 {
			t.Errorf("%v", hosts)
		}
		go m.old.drain()
	})
}

// serve is an edge that recovers whatever it is asked for, up to offset 1, until the
// connection ends. It counts the channels.
func (p *peer) serve(node string, known *atomic.Int32) {
	entries := func(list []*clientv1.SubscriptionRequest) []string {
		var out []string
		for _, r := range list {
			out = append(out, fmt.Sprintf(`{"channel":%q,"epoch":"e","offset":1,"recovered":true}`, r.Channel))
		}
		known.Add(int32(len(out)))
		return out
	}
	for {
		f, err := p.readFrame()
		if err != nil {
			return
		}
		if f = ws.UnmaskFrame(f); f.Header.OpCode != ws.OpText {
			p.nc.Close()
			return
		}
		c, _ := wire.DecodeClient(f.Payload)
		switch {
		case c.GetConnect() != nil:
			p.answerHello(c.Id, node, "ticket", entries(c.GetConnect().Subscriptions)...)
		case c.GetSubscribe() != nil:
			p.send(c.Id, `{"type":"subscribed","id":$,"subscriptions":[`+strings.Join(entries(c.GetSubscribe().Subscriptions), ",")+`]}`)
		case c.GetPing() != nil:
			p.send(c.Id, `{"type":"pong","id":$}`)
		}
	}
}

// The old connection stays until the last of many channels is taken over, also those
// that did not fit into connect.
func TestMoveOfManyChannels(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		const n = 3000
		l := newLog()
		lines := make(chan string, 2*n)
		l.lines = lines
		c := s.client()
		defer c.Close()
		for i := range n {
			mustSubscribe(t, c, fmt.Sprintf("channel with a long name:%060d", i), l, Since("e", 1))
		}
		c.Start()
		var before, after atomic.Int32
		old, left := s.accept(), make(chan int32, 1)
		go func() {
			old.serve("edge-1", &before)
			left <- after.Load()
		}()
		for range n {
			l.expect(t, "subscribed e:1 recovered=true")
		}
		go old.send(0, goAnywhere)
		p := s.accept()
		go p.serve("edge-2", &after)
		if got := <-left; got != n || before.Load() != n {
			t.Errorf("%d channels at the old edge, %d at the new one when that was left", before.Load(), got)
		}
		synctest.Wait()
		l.nothing(t)
		if st := c.Stats(); st.Moves != 1 || st.Interruptions != 0 || c.Info().Node != "edge-2" {
			t.Errorf("%+v", st)
		}
	})
}
