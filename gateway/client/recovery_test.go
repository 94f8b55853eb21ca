package client

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/proto/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scene runs a test in a bubble with a scripted server and a client that is closed
// at the end.
func scene(t *testing.T, play func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { play(t, newServer(t)) })
}

func mustSubscribe(t *testing.T, c *Client, channel string, l *log, opts ...SubscribeOption) *Subscription {
	t.Helper()
	sub, err := c.Subscribe(channel, l.handler(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// A cut connection costs no event: the client comes back with its position, and
// what comes twice is delivered once.
func TestNothingIsLostOrDoubledAfterACut(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		sub := mustSubscribe(t, c, "a", l)
		c.Start()
		p := s.accept()
		id := p.expect(`{"type":"connect","id":$,"attempt":@,"subscriptions":[{"channel":"a"}],"client":"spillway-go"}`)
		p.send(id, hello+`{"channel":"a","epoch":"e","offset":4,"recovered":false}`+helloEnd, event("a", 5), event("a", 6))
		l.expect(t, "subscribed e:4 recovered=false", `event e:5 {"n":5}`, `event e:6 {"n":6}`)
		p.cut()

		p = s.accept()
		id = p.expect(`{"type":"connect","id":$,"attempt":@,"subscriptions":[{"channel":"a","epoch":"e","offset":6}],"client":"spillway-go"}`)
		p.send(id, hello+`{"channel":"a","epoch":"e","offset":8,"recovered":true}`+helloEnd)
		p.send(0, event("a", 5), event("a", 6), event("a", 7), event("a", 7), event("a", 8), event("a", 9))
		l.expect(t, "subscribed e:6 recovered=true", `event e:7 {"n":7}`, `event e:8 {"n":8}`, `event e:9 {"n":9}`)
		synctest.Wait()
		l.nothing(t)
		if pos, ok := sub.Position(); !ok || pos != (Position{Epoch: "e", Offset: 9}) {
			t.Errorf("position %v", pos)
		}
		go p.drain()
	})
}

func TestLossIsTold(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		mustSubscribe(t, c, "a", l, Since("e", 3))
		c.Start()
		p := s.accept()
		// History is gone.
		p.welcome(`{"channel":"a","epoch":"e","offset":9,"recovered":false,"reload_after_ms":250}`)
		l.expect(t, "gap e:3 to e:9 not_recovered 250ms", "subscribed e:9 recovered=false")
		p.send(0,
			event("a", 10),
			`{"type":"gap","channel":"a","epoch":"e","offset":12,"reason":"bus","reload_after_ms":70}`,
			event("a", 12), // behind the gap
			event("a", 13),
			`{"type":"gap","channel":"a","epoch":"e","offset":5,"reason":"old","reload_after_ms":0}`,
			event("a", 16), // a server that forgets to say
			`{"type":"gap","channel":"a","epoch":"f","offset":0,"reason":"epoch","reload_after_ms":0}`,
			event("a", 1))
		l.expect(t,
			`event e:10 {"n":10}`, "gap e:10 to e:12 bus 70ms", `event e:13 {"n":13}`,
			"gap e:13 to e:15 skipped 0s", `event e:16 {"n":16}`,
			"gap e:16 to f:0 epoch 0s", `event f:1 {"n":1}`)
		p.cut()
		p = s.accept()
		p.expect(`{"type":"connect","id":$,"attempt":@,"subscriptions":[{"channel":"a","epoch":"f","offset":1}],"client":"spillway-go"}`)
		go p.drain()
	})
}

func TestPendingIsWaitedForAndLastBeginsAtFrom(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		sub := mustSubscribe(t, c, "a", l, Last(2))
		c.Start()
		p := s.accept()
		p.expect(bareConnect)
		p.send(1, hello+helloEnd)
		id := p.expect(`{"type":"subscribe","id":$,"channel":"a","last":2}`)
		p.send(id, `{"type":"subscribed","id":$,"channel":"a","pending":true}`)
		l.expect(t, "pending")
		if _, known := sub.Position(); known {
			t.Error("pending gave a position")
		}
		p.send(0, `{"type":"subscribed","channel":"a","epoch":"e","offset":9,"recovered":true,"from":7}`, event("a", 8), event("a", 9))
		l.expect(t, "subscribed e:7 recovered=true", `event e:8 {"n":8}`, `event e:9 {"n":9}`)
		if err := sub.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		go p.drain()
	})
}

func TestSubscriptionsThatDoNotFitOneFrameFollow(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		const n = 2000
		for i := range n {
			mustSubscribe(t, c, fmt.Sprintf("channel with a long name:%060d", i), l, Since("e", 1<<52))
		}
		c.Start()
		p := s.accept()
		f := p.next()
		seen := map[string]bool{}
		entries := ""
		for _, r := range f.GetConnect().Subscriptions {
			seen[r.Channel] = true
			entries += fmt.Sprintf(`,{"channel":%q,"pending":true}`, r.Channel)
		}
		if size := len(wire.AppendClient(nil, f)); size > wire.MaxClientFrameBytes || size < wire.MaxClientFrameBytes*3/4 {
			t.Errorf("connect has %d bytes", size)
		}
		go p.send(f.Id, hello+entries[1:]+helloEnd)
		for len(seen) < n {
			f := p.next()
			if size := len(wire.AppendClient(nil, f)); size > wire.MaxClientFrameBytes {
				t.Errorf("subscribe has %d bytes", size)
			}
			for _, r := range f.GetSubscribe().Subscriptions {
				if seen[r.Channel] {
					t.Fatalf("%s twice", r.Channel)
				}
				seen[r.Channel] = true
			}
		}
		go p.drain()
	})
}

func TestRefusedSubscriptionsEndOrAreAskedForAgain(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l := s.client(), newLog()
		defer c.Close()
		no, later := newLog(), newLog()
		refused := mustSubscribe(t, c, "no", no)
		mustSubscribe(t, c, "later", later)
		mustSubscribe(t, c, "yes", l)
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"yes","epoch":"e","offset":0,"recovered":false}`,
			`{"channel":"no","error":{"code":"forbidden","message":"not yours","temporary":false}}`,
			`{"channel":"later","error":{"code":"unavailable","message":"busy","temporary":true,"retry_after_ms":1500}}`)
		no.expect(t, "end forbidden: not yours")
		later.expect(t, "error unavailable: busy")
		l.expect(t, "subscribed e:0 recovered=false")
		if err := refused.Wait(t.Context()); err == nil || err.Error() != "forbidden: not yours" {
			t.Errorf("Wait: %v", err)
		}
		before := time.Now()
		id := p.expect(`{"type":"subscribe","id":$,"channel":"later"}`)
		if d := time.Since(before); d != 1500*time.Millisecond {
			t.Errorf("asked again after %v", d)
		}
		p.send(id, `{"type":"subscribed","id":$,"channel":"later","epoch":"e","offset":0,"recovered":false}`)
		later.expect(t, "subscribed e:0 recovered=false")
		p.send(0, `{"type":"unsubscribed","channel":"later","error":{"code":"revoked","message":"","temporary":false}}`)
		later.expect(t, "end revoked: ")
		if c.Subscription("later") != nil || c.Subscription("yes") == nil {
			t.Error("the wrong subscriptions are left")
		}
		go p.drain()
	})
}

// What is still under way for a subscription that ended belongs to no later one.
func TestUnsubscribeAndSubscribeAgain(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		c, l, l2 := s.client(), newLog(), newLog()
		defer c.Close()
		old := mustSubscribe(t, c, "a", l)
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"a","epoch":"e","offset":4,"recovered":false}`)
		l.expect(t, "subscribed e:4 recovered=false")
		if _, err := c.Subscribe("a", Handler{}); err != ErrSubscribed {
			t.Errorf("a second subscription: %v", err)
		}
		old.Unsubscribe()
		old.Unsubscribe()
		mustSubscribe(t, c, "a", l2, Since("e", 2))
		p.send(0, event("a", 5))
		p.expect(`{"type":"unsubscribe","id":$,"channel":"a"}`)
		id := p.expect(`{"type":"subscribe","id":$,"channel":"a","epoch":"e","offset":2}`)
		p.send(id-1, `{"type":"unsubscribed","id":$,"channel":"a"}`)
		p.send(id, `{"type":"subscribed","id":$,"channel":"a","epoch":"e","offset":5,"recovered":true}`, event("a", 3))
		l2.expect(t, "subscribed e:2 recovered=true", `event e:3 {"n":3}`)
		l.nothing(t)
		go p.drain()
	})
}

func TestChannelsThatTheTokenJoins(t *testing.T) {
	scene(t, func(t *testing.T, s *server) {
		l := newLog()
		c := s.client(WithJoined(func(channel string) Handler {
			l.add("joined %s", channel)
			return l.handler()
		}))
		defer c.Close()
		c.Start()
		p := s.accept()
		p.welcome(`{"channel":"user:ann","epoch":"e","offset":1,"recovered":false}`)
		p.send(0, event("user:ann", 2))
		l.expect(t, "joined user:ann", "subscribed e:1 recovered=false", `event e:2 {"n":2}`)
		p.cut()
		p = s.accept()
		p.expect(`{"type":"connect","id":$,"attempt":@,"subscriptions":[{"channel":"user:ann","epoch":"e","offset":2}],"client":"spillway-go"}`)
		go p.drain()
	})
}
