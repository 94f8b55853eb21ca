package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// gap between the last dial and now, in the bubble's time.
func (s *server) gaps() (out []time.Duration) {
	for i := 1; i < len(s.dials); i++ {
		out = append(out, s.dials[i].Sub(s.dials[i-1]))
	}
	return out
}

// A server that accepts and closes at once must not be hammered.
func TestFlappingServerMakesBackoffGrow(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		for range 9 {
			p := s.accept()
			p.welcome()
			p.cut()
		}
		// Jitter is half: 1 s (half of the server's window of 2 s), then half of 1, 2, 4 … 30 s.
		want := []time.Duration{time.Second, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second}
		if got := s.gaps(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("waited %v, want %v", got, want)
		}
	})
}

func TestFiveSecondsUpForgetFailures(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		for range 4 {
			p := s.accept()
			p.welcome()
			time.Sleep(stableUp)
			p.cut()
		}
		for i, d := range s.gaps() {
			if d != stableUp+time.Second {
				t.Errorf("dial %d came %v after the one before", i+1, d)
			}
		}
	})
}

func TestNobodyThereIsTriedForEverAndSlowly(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		s.down = true
		states := make(chan StateChange, 1000)
		c := s.client(WithOnState(func(ch StateChange) { states <- ch }))
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := c.Connect(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Connect: %v", err)
		}
		synctest.Wait()
		if n := len(s.dials); n < 200 || n > 260 {
			t.Errorf("%d dials in an hour", n)
		}
		if ch := <-states; ch.To != Connecting || c.State() != Connecting {
			t.Errorf("%v, %v", ch, c.State())
		}
		if ch := <-states; ch.From != Connecting || ch.To != Connecting || ch.Err == nil {
			t.Errorf("a failed attempt was told as %v", ch)
		}
	})
}

// Frames decide, codes repeat. after: when the next dial comes; -1: never.
func TestTheEndOfAConnection(t *testing.T) {
	errorFrame := func(code int, more string) string {
		return fmt.Sprintf(`{"type":"error","code":"unavailable","message":"m","temporary":true,"close":%d%s}`, code, more)
	}
	const window, backoff, fromCap = time.Second, 250 * time.Millisecond, 15 * time.Second
	for name, c := range map[string]struct {
		frames []string
		code   wire.CloseCode // 0: cut
		after  time.Duration
	}{
		"cut":                    {nil, 0, window},
		"normal":                 {nil, 1000, window},
		"going away":             {nil, 1001, window},
		"protocol error":         {nil, 1002, fromCap},
		"invalid data":           {nil, 1007, fromCap},
		"too big":                {nil, 1009, fromCap},
		"come back":              {nil, 4000, window},
		"shutdown":               {nil, 4001, window},
		"unknown, comes back":    {nil, 4077, window},
		"ping timeout":           {nil, 4004, backoff},
		"slow consumer":          {nil, 4005, backoff},
		"superseded":             {nil, 4006, backoff},
		"credentials":            {nil, 4100, backoff},
		"unknown, credentials":   {nil, 4155, backoff},
		"stop":                   {nil, 4200, -1},
		"unknown, stop":          {nil, 4299, -1},
		"frame without code":     {[]string{errorFrame(4200, "")}, 0, -1},
		"frame before code":      {[]string{errorFrame(4006, "")}, 4200, backoff},
		"the last frame":         {[]string{errorFrame(4200, ""), errorFrame(4001, "")}, 4200, window},
		"server's wait":          {[]string{errorFrame(4000, `,"retry_after_ms":7000`)}, 4000, 7 * time.Second},
		"too long a wait":        {[]string{errorFrame(4000, `,"retry_after_ms":4000000000`)}, 4000, 10 * time.Minute},
		"busy":                   {[]string{`{"type":"busy","retry_after_ms":3000,"scope":"node"}`}, 1006, 3 * time.Second},
		"reconnect":              {[]string{`{"type":"reconnect","reason":"drain","after_ms":400,"deadline_ms":9000}`}, 4001, 400 * time.Millisecond},
		"error without close":    {[]string{`{"type":"error","code":"internal","message":"","temporary":true}`}, 4200, -1},
		"a frame of another day": {[]string{`{"type":"weather","code":4200}`}, 0, window},
		"what is not JSON":       {[]string{`{"type":`}, 0, fromCap},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				client := s.client()
				defer client.Close()
				client.Start()
				p := s.accept()
				p.welcome()
				time.Sleep(stableUp)
				if c.frames != nil {
					p.send(0, c.frames...)
				}
				if c.code == 0 {
					synctest.Wait()
					p.cut()
				} else {
					p.close(c.code)
				}
				end := time.Now()
				time.Sleep(time.Hour)
				synctest.Wait()
				if c.after < 0 {
					if len(s.dials) != 1 || client.State() != Disconnected {
						t.Errorf("%d dials, %v", len(s.dials), client.State())
					}
					return
				}
				if got := s.dials[1].Sub(end); got != c.after {
					t.Errorf("came back after %v, want %v", got, c.after)
				}
			})
		})
	}
}

func TestStopTellsTheApplicationAndConnectBeginsAnew(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		states := make(chan StateChange, 10)
		c, l := s.client(WithOnState(func(ch StateChange) { states <- ch })), newLog()
		defer c.Close()
		mustSubscribe(t, c, "a", l)
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":4,"recovered":false}`)
		p.send(0, `{"type":"error","code":"revoked","message":"gone","temporary":false,"close":4200}`)
		p.close(4200)
		for ch := range states {
			if ch.To == Disconnected {
				var why *CloseError
				if !errors.As(ch.Err, &why) || why.Code != wire.CloseStop || why.Reason != "revoked: gone" {
					t.Errorf("%v", ch.Err)
				}
				break
			}
		}
		if _, err := c.Ping(t.Context()); err == nil {
			t.Error("a call on a stopped client must fail")
		}
		c.Start()
		p = s.accept()
		p.expect(`{"type":"connect","id":$,"attempt":@,"subscriptions":[{"channel":"a","epoch":"e","offset":4}],"client":"spillway-go"}`)
		go p.drain()
	})
}

func TestRefusedHandshakes(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		after  time.Duration
	}{
		"our body":    {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 9\r\nContent-Length: 38\r\n\r\n{\"retry_after_ms\":4200,\"scope\":\"node\"}", 4200 * time.Millisecond},
		"Retry-After": {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 8\r\nContent-Length: 4\r\n\r\nbusy", 12 * time.Second},
		"0 s":         {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n", 500 * time.Millisecond},
		"a date":      {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: Mon, 30 Nov 2026 05:00:00 GMT\r\nContent-Length: 0\r\n\r\n", 250 * time.Millisecond},
		"400":         {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 250 * time.Millisecond},
		"not HTTP":    {"SSH-2.0-OpenSSH_9.9\r\n\r\n", 250 * time.Millisecond},
		"silence":     {"", 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				client := s.client()
				defer client.Close()
				client.Start()
				nc := s.acceptRaw()
				go func() {
					buf := make([]byte, 4096)
					nc.Read(buf)
					nc.Write([]byte(c.answer))
					nc.Close()
				}()
				synctest.Wait()
				end := time.Now()
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := s.dials[1].Sub(end); got != c.after {
					t.Errorf("came back after %v, want %v", got, c.after)
				}
			})
		})
	}
}

// Half a handshake, or a server that never says connected, costs 15 s, then 30, 60.
func TestAttemptsEnd(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		want := []time.Duration{15*time.Second + 250*time.Millisecond, 30*time.Second + 500*time.Millisecond, 61 * time.Second, 62 * time.Second, 64 * time.Second}
		if got := s.gaps(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("attempts took %v, want %v", got, want)
		}
	})
}

func TestEndlessHandshakeIsNotRead(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		nc := s.acceptRaw()
		defer nc.Close()
		go nc.Read(make([]byte, 4096))
		total := 0
		line := []byte("X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")
		nc.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n"))
		for {
			n, err := nc.Write(line)
			total += n
			if err != nil {
				break
			}
		}
		if total > 4*wire.MaxHandshakeBytes {
			t.Errorf("%d bytes were read", total)
		}
	})
}

func TestSilentConnectionIsLeft(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		p := s.accept()
		p.welcome()
		up := time.Now()
		id := p.expect(`{"type":"ping","id":$}`)
		if d := time.Since(up); d != 15*time.Second {
			t.Errorf("the first ping came after %v", d)
		}
		p.send(id, `{"type":"pong","id":$}`)
		p.expect(`{"type":"ping","id":$}`)
		if d := time.Since(up); d != 45*time.Second {
			t.Errorf("the second ping came after %v", d)
		}
		go p.drainSilently()
		s.accept()
		if d := time.Since(up); d != 55*time.Second+250*time.Millisecond {
			t.Errorf("the next dial came after %v", d)
		}
	})
}

// drainSilently reads and never answers.
func (p *peer) drainSilently() {
	for {
		if _, err := p.readFrame(); err != nil {
			p.nc.Close()
			return
		}
	}
}

func TestSeveralURLs(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var hosts []string
		dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
			hosts = append(hosts, addr)
			if addr == "b.test:80" {
				return s.dial(ctx, "", addr)
			}
			return nil, errors.New("no route")
		}
		c := s.client(WithDialer(dial), WithURLs("ws://b.test/v1/ws"))
		defer c.Close()
		c.Start()
		s.accept().welcome()
		synctest.Wait()
		for i, h := range hosts[:len(hosts)-1] {
			if h != "edge.test:80" {
				t.Errorf("dial %d went to %s", i, h)
			}
		}
		if len(hosts) < 4 || c.State() != Connected {
			t.Errorf("%v %v", hosts, c.State())
		}
	})
}
