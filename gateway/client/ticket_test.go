package client

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
)

// Every way in which a ticket comes, and what makes the client forget it. The
// position stays in any case.
func TestTickets(t *testing.T) {
	closing := func(code int, word string) string {
		return fmt.Sprintf(`{"type":"error","code":%q,"message":"","temporary":false,"close":%d}`, word, code)
	}
	for name, c := range map[string]struct {
		frame string
		then  func(*peer)
		want  string
	}{
		"connected":    {"", (*peer).cut, "first"},
		"reconnect":    {`{"type":"reconnect","reason":"drain","after_ms":1000,"deadline_ms":9000,"ticket":"moved"}`, (*peer).cut, "moved"},
		"refreshed":    {`{"type":"refreshed","id":77,"ticket":"new"}`, (*peer).cut, "new"},
		"pong":         {`{"type":"pong","id":78,"ticket":"newer"}`, (*peer).cut, "newer"},
		"pong without": {`{"type":"pong","id":78}`, (*peer).cut, "first"},
		"not base64":   {`{"type":"pong","id":78,"ticket":"x, evil\r\nX-A: b"}`, (*peer).cut, "first"},
		"too long":     {fmt.Sprintf(`{"type":"pong","id":78,"ticket":%q}`, strings.Repeat("x", 1025)), (*peer).cut, "first"},
		"longest":      {fmt.Sprintf(`{"type":"pong","id":78,"ticket":%q}`, strings.Repeat("x", 1024)), (*peer).cut, strings.Repeat("x", 1024)},
		"shutdown":     {closing(4001, "unavailable"), func(p *peer) { p.close(4001) }, "first"},
		"slow":         {closing(4005, "unavailable"), func(p *peer) { p.close(4005) }, "first"},
		"superseded":   {closing(4006, "unavailable"), func(p *peer) { p.close(4006) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				m := newMoving(t, s)
				if c.frame != "" {
					m.old.send(0, c.frame)
				}
				synctest.Wait()
				c.then(m.old)
				p := s.accept()
				if p.ticket() != c.want {
					t.Errorf("offered %q", p.ticket())
				}
				f := p.next().GetConnect()
				if f.Ticket != c.want || len(f.Subscriptions) != 1 || f.Subscriptions[0].GetOffset() != 4 {
					t.Errorf("%v", f)
				}
				go p.drain()
			})
		})
	}
}

func TestRefusedTicketIsForgotten(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n",
	} {
		scene(t, func(t *testing.T, s *server) {
			m := newMoving(t, s)
			m.old.cut()
			nc := s.acceptRaw()
			go func() {
				buf := make([]byte, 4096)
				nc.Read(buf)
				nc.Write([]byte(answer))
				nc.Close()
			}()
			p := s.accept()
			if len(p.offered) != 1 {
				t.Errorf("offered %q", p.offered)
			}
			go p.drain()
		})
	}
}

// A client that comes back with a ticket asks nobody for a token, whatever becomes of
// the token meanwhile; only if the ticket is refused too it asks, once.
func TestResumeDoesNotAskForTokens(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		m := newMoving(t, s, WithToken(counter(&calls)))
		p := m.old
		for i := range 10 {
			p.cut()
			p = s.accept()
			p.hello("edge-2", fmt.Sprint("t", i), `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		}
		synctest.Wait()
		if calls.Load() != 1 || m.c.Stats().TokenCalls != 1 || m.c.Stats().Resumes != 11 {
			t.Errorf("%d calls, %+v", calls.Load(), m.c.Stats())
		}
		p.cut()
		p = s.accept()
		id := p.expect(`{"type":"connect","id":$,"token":"t1","ticket":"t9","attempt":@,"subscriptions":[{"channel":"a","epoch":"e","offset":4}],"client":"spillway-go"}`)
		p.send(id, `{"type":"error","id":$,"code":"expired","message":"","temporary":false}`)
		p.expect(`{"type":"connect","id":$,"token":"t2","attempt":@,"subscriptions":[{"channel":"a","epoch":"e","offset":4}],"client":"spillway-go"}`)
		go p.drain()
	})
}

// A server that refuses for load writes the 101, busy and the close at once and reads
// no more. The pass goes to the door of the next attempt and nowhere else.
func TestBusyBehindTheHandshake(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.cut()
		nc := s.acceptRaw()
		out := &gather{Conn: nc}
		if _, err := (ws.Upgrader{}).Upgrade(out); err != nil {
			t.Fatal(err)
		}
		ws.WriteFrame(out, ws.NewTextFrame([]byte(`{"type":"busy","retry_after_ms":7000,"scope":"node","url":"ws://other.test/v1/ws","ticket":"pass"}`)))
		ws.WriteFrame(out, ws.NewCloseFrame(ws.NewCloseFrameBody(4010, "")))
		go func() {
			nc.Write(out.buf.Bytes())
			nc.Close()
		}()
		synctest.Wait()
		refused := time.Now()
		p := s.accept()
		if d := time.Since(refused); d != 7*time.Second || p.ticket() != "pass" || p.addr != "other.test:80" {
			t.Errorf("after %v at %s with %q", d, p.addr, p.ticket())
		}
		if f := p.next().GetConnect(); f.Ticket != "first" {
			t.Errorf("%v", f)
		}
		p.cut()
		p = s.accept()
		if p.ticket() != "first" || p.addr != "edge.test:80" {
			t.Errorf("then at %s with %q", p.addr, p.ticket())
		}
		go p.drain()
	})
}

// gather keeps what is written.
type gather struct {
	net.Conn
	buf bytes.Buffer
}

func (g *gather) Write(b []byte) (int, error) { return g.buf.Write(b) }

func TestTicketsAreNotLogged(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		text := &lockedBuffer{}
		m := newMoving(t, s, WithLogger(slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		m.old.send(0, `{"type":"pong","id":9,"ticket":"SECRET1"}`)
		m.old.send(0, strings.Replace(goAnywhere, "moved", "SECRET2", 1))
		p := s.accept()
		p.next()
		p.send(0, `{"type":"busy","retry_after_ms":300,"scope":"node","ticket":"SECRET3"}`)
		p.close(4010)
		nc := s.acceptRaw()
		nc.Close()
		p = s.accept()
		p.hello("edge-2", "SECRET4", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
		m.old.expectClose(1000)
		p.cut()
		p = s.accept()
		synctest.Wait()
		for len(m.states) > 0 {
			fmt.Fprintln(text, (<-m.states).Err)
		}
		for len(m.moves) > 0 {
			fmt.Fprintln(text, (<-m.moves).Err)
		}
		if all := text.String(); strings.Contains(all, "SECRET") || !strings.Contains(all, "client move") {
			t.Errorf("%s", all)
		}
		go p.drain()
	})
}

type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestWakeChecksAConnection(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.c.Wake()
		id := m.old.expect(`{"type":"ping","id":$}`)
		m.old.send(id, `{"type":"pong","id":$}`)
		synctest.Wait()
		m.c.Wake()
		woke := time.Now()
		go m.old.drainSilently()
		p := s.accept()
		if d := time.Since(woke); d != nudgePing+250*time.Millisecond {
			t.Errorf("the dead connection was left after %v", d)
		}
		go p.drain()
	})
}

func TestWakeBringsAnAttemptForward(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		s.down = true
		c := s.client()
		defer c.Close()
		c.Wake() // before Start: nothing
		c.Start()
		time.Sleep(4 * time.Minute) // waits are 15 s now
		synctest.Wait()
		lastDial := func() time.Time {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.dials[len(s.dials)-1]
		}
		nextDial := func() time.Time {
			for before := lastDial(); lastDial() == before; synctest.Wait() {
				time.Sleep(50 * time.Millisecond)
			}
			return lastDial()
		}
		nextDial()
		for i, want := range []time.Duration{time.Second, 15 * time.Second, 15 * time.Second, time.Second} {
			woke := lastDial()
			c.Wake()
			c.Wake()
			if d := nextDial().Sub(woke); d != want {
				t.Errorf("wake %d: dialled after %v, want %v", i, d, want)
			}
		}
	})
}

func TestWakeLeavesAServersWaitAlone(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		m := newMoving(t, s)
		m.old.send(0, `{"type":"error","code":"unavailable","message":"","temporary":true,"retry_after_ms":60000,"close":4000}`)
		m.old.close(4000)
		ended := time.Now()
		time.Sleep(time.Second)
		m.c.Wake()
		p := s.accept()
		if d := time.Since(ended); d != time.Minute {
			t.Errorf("came after %v", d)
		}
		go p.drain()
	})
}

// After a 4005 it takes a minute to be trusted again.
func TestSlowConsumerIsForgivenAfterAMinute(t *testing.T) {
	for _, up := range []time.Duration{59 * time.Second, 60 * time.Second} {
		t.Run(up.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				m := newMoving(t, s)
				m.old.close(4005)
				p := s.accept()
				p.hello("edge-1", "t", `{"channel":"a","epoch":"e","offset":4,"recovered":true}`)
				go p.drain()
				time.Sleep(up)
				p.nc.Close()
				lost := time.Now()
				p = s.accept()
				want := 500 * time.Millisecond // half of a second failure
				if up >= time.Minute {
					want = time.Second // half of the window
				}
				if d := time.Since(lost); d != want {
					t.Errorf("came after %v, want %v", d, want)
				}
				go p.drain()
			})
		})
	}
}

// An edge that sends everybody away at once, in words, must not be hammered either.
func TestFlappingReconnectsMakeBackoffGrow(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		for range 8 {
			p := s.accept()
			p.next()
			p.send(0, `{"type":"reconnect","reason":"drain","after_ms":0,"deadline_ms":1}`)
			p.close(4001)
		}
		want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second}
		if got := s.gaps(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("waited %v, want %v", got, want)
		}
	})
}
