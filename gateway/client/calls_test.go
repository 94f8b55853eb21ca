package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/proto/wire"
)

type published struct {
	pos Position
	err error
}

func (c *Client) publishLater(t *testing.T, data string, opts ...PublishOption) <-chan published {
	out := make(chan published, 1)
	go func() {
		pos, err := c.Publish(t.Context(), "a", []byte(data), opts...)
		out <- published{pos, err}
	}()
	synctest.Wait()
	return out
}

func TestPublishAndHistory(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		early := c.publishLater(t, ` { "n" : 1 } `, Key("k"), Meta(map[string]string{"m": "v"}))
		p := s.accept()
		p.welcome()
		id := p.expect(`{"type":"publish","id":$,"channel":"a","data":{"n":1},"meta":{"m":"v"},"key":"k"}`)
		p.send(id, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":7}`)
		if got := <-early; got.err != nil || got.pos != (Position{Epoch: "e", Offset: 7}) {
			t.Errorf("%+v", got)
		}
		bytes := c.publishLater(t, "\x00\xff", Binary())
		id = p.expect(`{"type":"publish","id":$,"channel":"a","data_b64":"AP8="}`)
		p.send(id, `{"type":"error","id":$,"code":"rate_limited","message":"slow","temporary":true,"retry_after_ms":5}`)
		var refused *Error
		if got := <-bytes; !errors.As(got.err, &refused) || refused.Code != "rate_limited" || !refused.Temporary || refused.RetryAfter != 5*time.Millisecond {
			t.Errorf("%+v", got)
		}
		var page HistoryPage
		var err error
		read := make(chan struct{})
		go func() {
			page, err = c.History(t.Context(), "a", Before(Position{Epoch: "e", Offset: 9}), Limit(2))
			close(read)
		}()
		id = p.expect(`{"type":"history","id":$,"channel":"a","epoch":"e","offset":9,"limit":2,"reverse":true}`)
		p.send(id, `{"type":"history","id":$,"channel":"a","epoch":"e","events":[{"offset":8,"data":1,"time_ms":5},{"offset":7,"data_b64":"AA==","time_ms":5}],"more":true}`)
		<-read
		after := make(chan error)
		go func() { // ends with the answer below
			_, err := c.History(t.Context(), "a", After(Position{Epoch: "e", Offset: 3}), Limit(2))
			after <- err
		}()
		id = p.expect(`{"type":"history","id":$,"channel":"a","epoch":"e","offset":3,"limit":2}`)
		p.send(id, `{"type":"history","id":$,"channel":"a","epoch":"e","events":[]}`)
		if err := <-after; err != nil {
			t.Error(err)
		}
		go p.drain()
		if err != nil || len(page.Events) != 2 || !page.More || page.Events[1].Offset != 7 || !page.Events[1].Binary || page.Events[0].Epoch != "e" {
			t.Errorf("%+v %v", page, err)
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		for _, bad := range []string{"", "{", "1 2", "\xff"} {
			if _, err := c.Publish(t.Context(), "a", []byte(bad)); err == nil {
				t.Errorf("%q was published", bad)
			}
		}
		if _, err := c.Publish(t.Context(), "a\n", []byte("1")); err == nil {
			t.Error("a bad channel was published to")
		}
		big := c.publishLater(t, `"`+strings.Repeat("x", wire.MaxClientFrameBytes)+`"`)
		if got := <-big; !errors.As(got.err, &refused) || refused.Code != "too_large" {
			t.Errorf("%v", got.err)
		}
	})
}

// Reads and publishes with a key are sent again, in order; of any other nobody
// knows what became of it.
func TestCallsThatWereCutOff(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		c.Start()
		p := s.accept()
		p.welcome()
		keyed := c.publishLater(t, "1", Key("k"))
		plain := c.publishLater(t, "2")
		for range 2 {
			p.next()
		}
		p.cut()
		if got := <-plain; got.err != ErrOutcomeUnknown {
			t.Errorf("%+v", got)
		}
		later := c.publishLater(t, "3")
		p = s.accept()
		p.welcome()
		id := p.expect(`{"type":"publish","id":$,"channel":"a","data":1,"key":"k"}`)
		p.send(id, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":1}`)
		id = p.expect(`{"type":"publish","id":$,"channel":"a","data":3}`)
		p.send(id, `{"type":"published","id":$,"channel":"a","epoch":"e","offset":2}`)
		if got := <-keyed; got.err != nil || got.pos.Offset != 1 {
			t.Errorf("%+v", got)
		}
		if got := <-later; got.err != nil || got.pos.Offset != 2 {
			t.Errorf("%+v", got)
		}
		go p.drain()
	})
}

func TestCallsEndWithTheirContextAndWithTheClient(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		if _, err := c.Ping(t.Context()); err != ErrNotConnected {
			t.Errorf("before Start: %v", err)
		}
		c.Start()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		waiting := c.publishLater(t, "1")
		c.Close()
		if got := <-waiting; got.err != ErrClosed {
			t.Errorf("%v", got.err)
		}
		c.Close()
		if _, err := c.Ping(t.Context()); err != ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Subscribe("a", Handler{}); err != ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		if err := c.Connect(t.Context()); err != ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestPanickingCallbackDoesNotStopTheProtocol(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		l := newLog()
		c := s.client(WithOnState(func(StateChange) { panic("state") }))
		defer c.Close()
		h := l.handler()
		h.OnEvent = func(e Event) {
			l.add("event %d", e.Offset)
			panic(e)
		}
		sub, _ := c.Subscribe("a", h)
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":0,"recovered":false}`)
		p.send(0, event("a", 1), event("a", 2))
		l.expect(t, "subscribed e:0 recovered=false", "event 1", "event 2")
		synctest.Wait()
		if pos, _ := sub.Position(); pos.Offset != 2 {
			t.Errorf("position %v", pos)
		}
		go p.drain()
		if _, err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A slow application stops the reading, not the heartbeat, and loses nothing.
func TestSlowApplicationIsWaitedFor(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		defer c.Close()
		release, seen := make(chan struct{}), make(chan uint64, 1000)
		c.Subscribe("a", Handler{OnEvent: func(e Event) {
			<-release
			seen <- e.Offset
		}})
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":0,"recovered":false}`)
		const n = 200
		filler := `"` + strings.Repeat("x", 60_000) + `"`
		written := 0
		flood := make(chan struct{})
		go func() {
			defer close(flood)
			for i := range n {
				text := strings.Replace(event("a", i+1), `{"n":`, `{"f":`+filler+`,"n":`, 1)
				if ws.WriteFrame(p.nc, ws.NewTextFrame([]byte(text))) != nil {
					return
				}
				written++
			}
		}()
		go p.drainSilently()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if bytes := written * 60_000; bytes < mailboxBytes || bytes > mailboxBytes+200_000 {
			t.Errorf("%d bytes were read ahead", bytes)
		}
		if c.State() != Connected || len(s.dials) != 1 {
			t.Errorf("%v after %d dials", c.State(), len(s.dials))
		}
		close(release)
		<-flood
		for i := range n {
			select {
			case got := <-seen:
				if got != uint64(i+1) {
					t.Fatalf("event %d, want %d", got, i+1)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no event %d", i+1)
			}
		}
	})
}

func TestCloseFromACallback(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c := s.client()
		done := make(chan struct{})
		c.Subscribe("a", Handler{OnSubscribed: func(Subscribed) {
			c.Close()
			close(done)
		}})
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":0,"recovered":false}`)
		f, err := p.readFrame()
		if err != nil || f.Header.OpCode != ws.OpClose {
			t.Errorf("%v %v", f, err)
		}
		p.cut()
		<-done
	})
}

// Lengths are checked before anything is allocated or waited for.
func TestFramesThatMustNotBe(t *testing.T) {
	head := func(op ws.OpCode, fin bool, length int64) []byte {
		w := &strings.Builder{}
		ws.WriteHeader(w, ws.Header{Fin: fin, OpCode: op, Length: length})
		return []byte(w.String())
	}
	for name, c := range map[string]struct {
		bytes []byte
		code  wire.CloseCode
	}{
		"huge":            {head(ws.OpText, true, 1<<40), wire.CloseTooBig},
		"over a MiB":      {head(ws.OpText, true, wire.MaxFrameBytes+1), wire.CloseTooBig},
		"binary":          {head(ws.OpBinary, true, 1), wire.CloseUnsupported},
		"big ping":        {head(ws.OpPing, true, 126), wire.CloseProtocol},
		"continuation":    {head(ws.OpContinuation, true, 1), wire.CloseProtocol},
		"reserved":        {head(ws.OpCode(5), true, 1), wire.CloseProtocol},
		"masked":          {[]byte{0x81, 0x81, 1, 2, 3, 4, 5}, wire.CloseProtocol},
		"empty fragments": {append(head(ws.OpText, false, 0), []byte(strings.Repeat("\x00\x00", 300))...), wire.CloseProtocol},
		"not UTF-8":       {append(head(ws.OpText, true, 39), "{\"type\":\"gap\",\"channel\":\"\xff\",\"offset\":1}"...), wire.CloseInvalidData},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *server) {
				client := s.client()
				defer client.Close()
				client.Start()
				p := s.accept()
				p.welcome()
				go p.nc.Write(c.bytes)
				for {
					f, err := p.readFrame()
					if err != nil {
						t.Fatal(err)
					}
					if f = ws.UnmaskFrame(f); f.Header.OpCode == ws.OpClose {
						if code, _ := ws.ParseCloseFrameData(f.Payload); wire.CloseCode(code) != c.code {
							t.Errorf("closed with %d, want %v", code, c.code)
						}
						break
					}
				}
				p.cut()
				synctest.Wait()
				if client.State() != Reconnecting {
					t.Error(client.State())
				}
			})
		})
	}
}

func TestPingOfTheWebSocketIsAnsweredInsideAMessage(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		mustSubscribe(t, c, "a", l)
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":0,"recovered":false}`)
		text := []byte(event("a", 1))
		go func() {
			ws.WriteFrame(p.nc, ws.NewFrame(ws.OpText, false, text[:10]))
			ws.WriteFrame(p.nc, ws.NewPingFrame([]byte("hi")))
			ws.WriteFrame(p.nc, ws.NewFrame(ws.OpContinuation, true, text[10:]))
		}()
		f, err := p.readFrame()
		if f = ws.UnmaskFrame(f); err != nil || f.Header.OpCode != ws.OpPong || string(f.Payload) != "hi" {
			t.Errorf("%v %v", f, err)
		}
		l.expect(t, "subscribed e:0 recovered=false", `event e:1 {"n":1}`)
		go p.drain()
	})
}
