package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counter gives t1, t2, …
func counter(calls *atomic.Int32) TokenProvider {
	return func(context.Context) (string, error) { return fmt.Sprintf("t%d", calls.Add(1)), nil }
}

// A cluster that comes back must not storm whoever issues tokens.
func TestReconnectsDoNotAskForTokens(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		c := s.client(WithToken(counter(&calls)))
		defer c.Close()
		c.Start()
		for range 20 {
			p := s.accept()
			id := p.expect(`{"type":"connect","id":$,"token":"t1","attempt":@,"client":"spillway-go"}`)
			p.send(id, hello+helloEnd)
			p.cut()
		}
		if calls.Load() != 1 {
			t.Errorf("the provider was asked %d times", calls.Load())
		}
	})
}

func TestTokenThatIsNotGoodIsReplacedOnTheSameConnection(t *testing.T) {
	for _, word := range []string{"expired", "unauthorized", "revoked"} {
		t.Run(word, func(t *testing.T) { replaced(t, word) })
	}
}

func replaced(t *testing.T, word string) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		c := s.client(WithToken(counter(&calls)))
		defer c.Close()
		c.Start()
		p := s.accept()
		id := p.expect(`{"type":"connect","id":$,"token":"t1","attempt":@,"client":"spillway-go"}`)
		p.send(id, `{"type":"error","id":$,"code":"`+word+`","message":"","temporary":false}`)
		id = p.expect(`{"type":"connect","id":$,"token":"t2","attempt":@,"client":"spillway-go"}`)
		// Not good either: no third try here, and no third question before the next attempt
		// was refused too.
		p.send(id, `{"type":"error","id":$,"code":"unauthorized","message":"","temporary":false}`)
		go p.drain()
		p = s.accept()
		id = p.expect(`{"type":"connect","id":$,"token":"t2","attempt":@,"client":"spillway-go"}`)
		p.send(id, hello+helloEnd)
		go p.drain()
		synctest.Wait()
		if calls.Load() != 2 || c.State() != Connected {
			t.Errorf("%d calls, %v", calls.Load(), c.State())
		}
	})
}

func TestCredentialsCloseAsksOnce(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		c := s.client(WithToken(counter(&calls)))
		defer c.Close()
		c.Start()
		p := s.accept()
		p.welcome()
		p.close(4100)
		p = s.accept()
		p.expect(`{"type":"connect","id":$,"token":"t2","attempt":@,"client":"spillway-go"}`)
		if calls.Load() != 2 {
			t.Errorf("%d calls", calls.Load())
		}
		go p.drain()
	})
}

func TestTokenIsRefreshedBeforeItEnds(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		c := s.client(WithToken(counter(&calls)))
		defer c.Close()
		c.Start()
		p := s.accept()
		f := p.next()
		p.send(f.Id, `{"type":"connected","id":$,"session":"s","ping_interval_ms":30000000,"pong_timeout_ms":10000,"expires_in_ms":100000,"subscriptions":[]}`)
		up := time.Now()
		id := p.expect(`{"type":"refresh","id":$,"token":"t2"}`)
		if d := time.Since(up); d != 65*time.Second {
			t.Errorf("refreshed after %v", d)
		}
		p.send(id, `{"type":"refreshed","id":$,"expires_in_ms":200000}`)
		id = p.expect(`{"type":"refresh","id":$,"token":"t3"}`)
		if d := time.Since(up); d != 195*time.Second {
			t.Errorf("refreshed after %v", d)
		}
		p.send(id, `{"type":"error","id":$,"code":"unavailable","message":"","temporary":true}`)
		p.expect(`{"type":"refresh","id":$,"token":"t4"}`)
		if d := time.Since(up); d != 230*time.Second {
			t.Errorf("tried again after %v", d)
		}
		go p.drain()
	})
}

func TestProviderWithoutTokenEndsTheClient(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client(WithToken(func(context.Context) (string, error) { return "", ErrNoToken }))
		defer c.Close()
		if err := c.Connect(t.Context()); !errors.Is(err, ErrNoToken) {
			t.Errorf("Connect: %v", err)
		}
		if len(s.dials) != 0 || c.State() != Disconnected {
			t.Errorf("%d dials, %v", len(s.dials), c.State())
		}
	})
}

func TestFailingProviderIsAskedAgainSlowly(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		var calls atomic.Int32
		c := s.client(WithToken(func(context.Context) (string, error) {
			switch calls.Add(1) {
			case 1:
				return "", errors.New("503")
			case 2:
				panic("provider")
			}
			return "t", nil
		}))
		defer c.Close()
		start := time.Now()
		c.Start()
		p := s.accept()
		if d := time.Since(start); d != 750*time.Millisecond {
			t.Errorf("dialled after %v", d)
		}
		p.expect(`{"type":"connect","id":$,"token":"t","attempt":@,"client":"spillway-go"}`)
		go p.drain()
	})
}
