package busproxy

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
)

// world is a server, a proxy before it, a publisher that does not use it and a
// subscriber that does.
type world struct {
	proxy    *Proxy
	pub, sub *nats.Conn
	got      chan *nats.Msg
}

func start(t *testing.T, touch func(string) bool) *world {
	server, err := natsserver.Start(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	w := &world{got: make(chan *nats.Msg, 10_000)}
	if w.proxy, err = Listen(Config{Target: strings.TrimPrefix(server.URL(), "nats://"), Seed: 1, Touch: touch}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.proxy.Close() })
	connect := func(url string) *nats.Conn {
		c, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	w.pub, w.sub = connect(server.URL()), connect("nats://"+w.proxy.Addr())
	if _, err := w.sub.ChanSubscribe("x.>", w.got); err != nil {
		t.Fatal(err)
	}
	w.flush(t)
	return w
}

func (w *world) flush(t *testing.T) {
	t.Helper()
	for _, c := range []*nats.Conn{w.sub, w.pub, w.sub} {
		if err := c.FlushTimeout(10 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) publish(t *testing.T, subject string, n int) {
	t.Helper()
	for i := range n {
		if err := w.pub.Publish(subject, fmt.Appendf(nil, "%d\r\nMSG x 1 1\r\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	w.flush(t)
}

// take waits for n messages and returns their numbers, with those that came along.
func (w *world) take(t *testing.T, n int) (numbers []string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for len(numbers) < n || len(w.got) > 0 {
		select {
		case m := <-w.got:
			number, _, _ := strings.Cut(string(m.Data), "\r\n")
			numbers = append(numbers, number)
		case <-deadline:
			t.Fatalf("%d of %d messages came", len(numbers), n)
		}
	}
	return numbers
}

func TestGoodWeatherChangesNothing(t *testing.T) {
	w := start(t, nil)
	w.publish(t, "x.a", 500)
	for i, number := range w.take(t, 500) {
		if number != fmt.Sprint(i) {
			t.Fatalf("%s came as number %d", number, i)
		}
	}
	if c := w.proxy.Counts(); c != (Counts{}) {
		t.Errorf("touched %+v", c)
	}
}

func TestMessagesAreLostDoubledAndLate(t *testing.T) {
	w := start(t, func(subject string) bool { return subject != "x.spared" })
	w.proxy.Set(Weather{Lose: 0.1, Double: 0.1, Late: 0.2, Most: 50 * time.Millisecond})
	w.publish(t, "x.a", 1000)
	c := w.proxy.Counts()
	if c.Lost < 50 || c.Doubled < 50 || c.Late < 100 {
		t.Errorf("touched only %+v", c)
	}
	numbers := w.take(t, 1000-int(c.Lost)+int(c.Doubled))
	if slices.IsSortedFunc(numbers, func(a, b string) int { return len(a) - len(b) }) {
		t.Error("nothing was overtaken")
	}
	slices.Sort(numbers)
	if distinct := slices.Compact(numbers); len(distinct) != 1000-int(c.Lost) {
		t.Errorf("%d different ones of %d came", len(distinct), 1000-int(c.Lost))
	}
	w.publish(t, "x.spared", 100)
	w.take(t, 100)
	if w.proxy.Counts() != c {
		t.Error("a subject was touched that is not to be")
	}
}

func TestCutsEnd(t *testing.T) {
	w := start(t, nil)
	w.proxy.Cut(false)
	eventually(t, "the node notices", func() bool { return !w.sub.IsConnected() })
	w.proxy.Mend()
	eventually(t, "the node is back", w.sub.IsConnected)
	w.flush(t) // its subscription must have reached the server again before anything is published
	w.publish(t, "x.a", 5)
	w.take(t, 5)

	w.proxy.Cut(true)
	for range 5 {
		if err := w.pub.Publish("x.a", []byte("0")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.sub.FlushTimeout(200 * time.Millisecond); err == nil {
		t.Error("something passes")
	}
	if !w.sub.IsConnected() || len(w.got) > 0 {
		t.Error("it was not silent")
	}
	w.proxy.Mend()
	w.take(t, 5)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

func TestUnitsOfTheProtocol(t *testing.T) {
	text := "INFO {}\r\nMSG a.b 1 5\r\nhe\r\no\r\nHMSG c 1 reply 2 4\r\nabcd\r\nPING\r\nMSG d 2 0\r\n\r\n"
	r := bufio.NewReaderSize(strings.NewReader(text), maxLine)
	var all, subjects []string
	for {
		unit, subject, err := next(r)
		if err != nil {
			break
		}
		all, subjects = append(all, string(unit)), append(subjects, subject)
	}
	if strings.Join(all, "") != text || fmt.Sprint(subjects) != "[ a.b c  d]" {
		t.Errorf("%q %q", all, subjects)
	}
	for _, bad := range []string{"MSG a 1 -3\r\n", "MSG a 1 x\r\n", "MSG 3\r\n", "MSG a 1 99999999999\r\n"} {
		if _, _, err := next(bufio.NewReaderSize(strings.NewReader(bad), maxLine)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
