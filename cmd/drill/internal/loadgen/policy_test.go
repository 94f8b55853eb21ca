package loadgen

import (
	"fmt"
	"os"
	"testing"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// onPaper is a generator of one client, which is connected by a conn without a socket.
// Every jitter is the longest that can be drawn, less a nanosecond; the server's window is
// 7 s.
func onPaper(t testing.TB, p Policy) (*loop, *client, *conn) {
	t.Helper()
	l := newLoop()
	var err error
	if l.out, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.out.Close() })
	cfg := Default()
	cfg.Targets, cfg.Max, cfg.Policy, cfg.Secret = []string{"ws://127.0.0.1:9/v1/ws"}, 1, p, []byte("secret")
	cfg.Subscriptions = []Subscription{{Format: "chat:1"}}
	if err := l.configure(&cfg); err != nil {
		t.Fatal(err)
	}
	l.protocol.Random = func(d time.Duration) time.Duration { return max(d-1, 0) }
	l.socket = func(*conn) error { return nil }
	c := &l.clients[0]
	l.begun = 1
	l.begin(c)
	return l, c, come(t, l, c)
}

// come has the newest attempt of a client succeed.
func come(t testing.TB, l *loop, c *client) *conn {
	t.Helper()
	k := c.conns
	k.state = open
	c.machine.Opened(l.time(), k.link)
	l.step(c)
	f := &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
		Ticket: "t", RetryWindowMs: 7000, PingIntervalMs: 600_000, PongTimeoutMs: 10_000,
		Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "chat:1", Epoch: "e1", Recovered: c.dials > 1}},
	}}}
	for f.Id = 1; c.outage != 0 || l.up == 0; f.Id++ {
		if f.Id > 1000 {
			t.Fatal("the client takes no welcome")
		}
		if err := l.frame(k, wire.AppendServer(nil, f)); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// back is how long the client stays away from now on, until it begins an attempt.
func back(l *loop, c *client) time.Duration {
	from := l.now
	for c.conns == nil {
		l.now = l.timers.next()
		l.dueTimers()
	}
	return time.Duration(l.now - from)
}

// What the drills show with thousands of clients is what the SDK does, by its numbers:
// where the two were written twice they were not the same.
func TestTheWaitsAreThoseOfTheSDK(t *testing.T) {
	const window = 7 * time.Second
	for _, x := range []struct {
		name string
		up   time.Duration
		code wire.CloseCode
		want time.Duration
	}{
		{"a long connection is lost", time.Minute, 0, window},
		{"a connection of 2 s is lost", 2 * time.Second, 0, window},
		{"closed with 1002", time.Minute, wire.CloseProtocol, 30 * time.Second},
		{"closed with 1002 after 2 s", 2 * time.Second, wire.CloseProtocol, 30 * time.Second},
		{"superseded", time.Minute, wire.CloseSuperseded, 500 * time.Millisecond},
	} {
		t.Run(x.name, func(t *testing.T) {
			l, c, k := onPaper(t, Policy{Kind: "sdk"})
			l.now += int64(x.up)
			k.code = uint16(x.code)
			l.connLost(k, CauseClosed)
			if d := back(l, c); d != x.want-1 {
				t.Errorf("back after %v, want %v", d, x.want)
			}
		})
	}
}

// A connection that lasted 5 s makes failures forgotten; after 4005 it takes 60 s.
func TestASlowConsumerIsForgivenAfterAMinute(t *testing.T) {
	for _, x := range []struct {
		up, want time.Duration
	}{{59 * time.Second, time.Second}, {60 * time.Second, 500 * time.Millisecond}} {
		l, c, k := onPaper(t, Policy{Kind: "sdk"})
		l.now += int64(time.Minute)
		for _, up := range []time.Duration{0, x.up} {
			l.now += int64(up)
			k.code = uint16(wire.CloseSlowConsumer)
			l.connLost(k, CauseClosed)
			d := back(l, c)
			if up > 0 && d != x.want-1 {
				t.Errorf("up for %v: back after %v, want %v", up, d, x.want)
			}
			k = come(t, l, c)
		}
	}
}

// Clients of another make keep to their own, whatever they are told.
func TestOldClientsKeepTheirOwnPauses(t *testing.T) {
	for name, want := range map[string][]time.Duration{
		"fixed-1s": {time.Second, time.Second, time.Second}, "fixed-5s": {5 * time.Second, 5 * time.Second, 5 * time.Second},
		"exponential": {500 * time.Millisecond, time.Second, 2 * time.Second},
	} {
		p, err := NamedPolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		l, c, k := onPaper(t, p)
		l.now += int64(time.Minute)
		var got []time.Duration
		for range want {
			k.code = 4200
			l.connLost(k, CauseClosed)
			got = append(got, back(l, c))
			k = come(t, l, c)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: back after %v, want %v", name, got, want)
		}
		if l.counts.TokenAsks != uint64(len(want))+1 || l.counts.Offered != 0 {
			t.Errorf("%s: %+v", name, l.counts)
		}
	}
	for _, p := range []Policy{{Kind: "odd", Interval: 1, AttemptTime: 1}, {Kind: "fixed"}} {
		if _, err := p.foreign(); err == nil {
			t.Errorf("%+v was taken", p)
		}
	}
}
