package poller

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
)

// world is one implementation under the conformance test.
type world struct {
	newPoller func(t testing.TB) Poller
	pair      func(t *testing.T) (Conn, net.Conn)
	listen    func(t *testing.T) (Listener, func() net.Conn)
}

// patience ends a wait for what must happen; no assertion depends on it.
const patience = 10 * time.Second

// promises are what both implementations keep.
var promises = []struct {
	name string
	test func(t *testing.T, w world)
}{
	{"UnreadBytesAreReportedAgain", testLevelTriggered},
	{"NothingToReadIsTemporary", testErrAgain},
	{"FinIsReadBehindTheData", testFin},
	{"AFullPeerIsReportedWhenItHasRoom", testWritable},
	{"AnUnreadClientIsSeenToLeave", testSetRead},
	{"ResetReachesBothEnds", testReset},
	{"WritingToNobodyIsReset", testWriteToNobody},
	{"CloseWithUnreadInputResets", testCloseUnread},
	{"AClosedConnSaysSo", testClosed},
	{"AConnMovesBetweenPollers", testMove},
	{"ForeignSourcesAreRefused", testForeign},
	{"EventsOfOldConnsDoNotReachNewOnes", testIdentity},
	{"WakeEndsAWait", testWake},
	{"WaitEndsInTime", testTimeout},
	{"ListenersAcceptWithoutBlocking", testListener},
	{"AClientIsAcceptedByOneOfTheLoopsThatShareAListener", testSharedListener},
	{"BytesComeBackInOrder", testEcho},
}

func runPromises(t *testing.T, run func(t *testing.T, f func(t *testing.T))) func(w world) {
	return func(w world) {
		for _, p := range promises {
			t.Run(p.name, func(t *testing.T) {
				run(t, func(t *testing.T) { p.test(t, w) })
			})
		}
	}
}

// await waits until an event satisfies want, and returns it.
func await(t *testing.T, p Poller, want func(Event) bool) Event {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		events, err := p.Wait(nil, patience)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			if want(ev) {
				return ev
			}
		}
	}
	t.Fatal("the event did not come")
	return Event{}
}

func readable(token uint64) func(Event) bool {
	return func(ev Event) bool { return ev.Token == token && ev.Readable }
}

func mustQuiet(t *testing.T, p Poller) {
	t.Helper()
	events, err := p.Wait(nil, 0)
	if err != nil || len(events) != 0 {
		t.Fatalf("Wait = %+v, %v; want nothing", events, err)
	}
}

func mustAdd(t *testing.T, p Poller, s Source, token uint64) {
	t.Helper()
	if err := p.Add(s, token); err != nil {
		t.Fatal(err)
	}
}

func mustWrite(t *testing.T, w io.Writer, s string) {
	t.Helper()
	if n, err := io.WriteString(w, s); err != nil || n != len(s) {
		t.Fatalf("write %q: %d, %v", s, n, err)
	}
}

// clientRead reads once from a client end.
func clientRead(t *testing.T, c net.Conn, n int) ([]byte, error) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, n)
	m, err := io.ReadFull(c, b)
	return b[:m], err
}

func testLevelTriggered(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	mustQuiet(t, p)
	mustWrite(t, client, "abc")
	b := make([]byte, 1)
	for _, want := range "abc" {
		if ev := await(t, p, readable(7)); ev.Hangup || ev.Writable {
			t.Fatalf("event %+v, want readable only", ev)
		}
		if n, err := c.Read(b); n != 1 || err != nil || rune(b[0]) != want {
			t.Fatalf("Read = %d, %v, %q; want %q", n, err, b, want)
		}
	}
	mustQuiet(t, p)
}

func testErrAgain(t *testing.T, w world) {
	c, _ := w.pair(t)
	n, err := c.Read(make([]byte, 8))
	if n != 0 || err != ErrAgain {
		t.Fatalf("Read = %d, %v; want ErrAgain", n, err)
	}
	if _, ok := err.(net.Error); !ok {
		t.Fatalf("%v is no net.Error", err)
	}
	// What crypto/tls asks; deprecated for anything else.
	if temp, ok := err.(interface{ Temporary() bool }); !ok || !temp.Temporary() {
		t.Fatalf("%v is not temporary", err)
	}
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Fatalf("Read(nil) = %d, %v", n, err)
	}
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Fatalf("Write(nil) = %d, %v", n, err)
	}
}

func testFin(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	mustWrite(t, client, "last words")
	if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await(t, p, func(ev Event) bool { return ev.Token == 7 && ev.Readable && ev.Hangup })
	b := make([]byte, 64)
	n, err := c.Read(b)
	if string(b[:n]) != "last words" || err != nil {
		t.Fatalf("Read = %q, %v", b[:n], err)
	}
	await(t, p, func(ev Event) bool { return ev.Token == 7 && ev.Hangup })
	if n, err := c.Read(b); n != 0 || err != io.EOF {
		t.Fatalf("Read = %d, %v; want io.EOF", n, err)
	}
	mustWrite(t, c, "answer")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	client.SetReadDeadline(time.Now().Add(patience))
	if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
		t.Fatalf("client read %q, %v", got, err)
	}
}

// fill writes until the peer takes no more.
func fill(t *testing.T, c Conn) (sent int) {
	t.Helper()
	b := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for {
		n, err := c.Write(b[sent%16:])
		sent += n
		switch {
		case err == ErrAgain && n == 0:
			return sent
		case err != nil || n == 0:
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
}

func testWritable(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	sent := fill(t, c)
	for range 2 { // the second change costs nothing
		if err := p.SetWrite(c, true); err != nil {
			t.Fatal(err)
		}
	}
	mustQuiet(t, p)
	got, err := clientRead(t, client, sent)
	if err != nil {
		t.Fatal(err)
	}
	for i, ch := range got {
		if ch != "0123456789abcdef"[i%16] {
			t.Fatalf("byte %d of %d is %q", i, sent, ch)
		}
	}
	writable := func(ev Event) bool { return ev.Token == 7 && ev.Writable }
	if ev := await(t, p, writable); ev.Readable || ev.Hangup {
		t.Fatalf("event %+v, want writable only", ev)
	}
	await(t, p, writable)
	if err := p.SetWrite(c, false); err != nil {
		t.Fatal(err)
	}
	mustQuiet(t, p)
}

func testSetRead(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	if err := p.SetRead(c, false); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, client, "request")
	mustQuiet(t, p)
	if err := p.SetRead(c, true); err != nil {
		t.Fatal(err)
	}
	await(t, p, readable(7))
	if err := p.SetRead(c, false); err != nil {
		t.Fatal(err)
	}
	mustQuiet(t, p)
	client.Close()
	await(t, p, func(ev Event) bool { return ev.Token == 7 && ev.Hangup })
}

func testReset(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	if err := c.Reset(); err != nil {
		t.Fatal(err)
	}
	if _, err := clientRead(t, client, 1); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("client read after Reset: %v, want a reset", err)
	}

	c, client = w.pair(t)
	mustAdd(t, p, c, 8)
	client.(interface{ SetLinger(int) error }).SetLinger(0)
	client.Close()
	await(t, p, func(ev Event) bool { return ev.Token == 8 && ev.Hangup && ev.Readable })
	if _, err := c.Read(make([]byte, 1)); err != ErrReset {
		t.Fatalf("Read after the client's reset: %v, want ErrReset", err)
	}
	if c.RemoteAddr() != (netip.AddrPort{}) {
		t.Fatal("RemoteAddr knows a peer that is gone")
	}
}

func testWriteToNobody(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	client.Close()
	await(t, p, func(ev Event) bool { return ev.Hangup })
	// The first write may still be taken; the peer answers it with RST.
	for end := time.Now().Add(patience); ; {
		_, err := c.Write([]byte("anyone?"))
		if err == ErrReset {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("Write = %v, want ErrReset at last", err)
		}
		if _, err := p.Wait(nil, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	c, _ = w.pair(t)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("too late")); err != ErrReset {
		t.Fatalf("Write after CloseWrite: %v, want ErrReset", err)
	}
}

func testCloseUnread(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	mustWrite(t, client, "not read")
	await(t, p, readable(7))
	c.Close()
	if _, err := clientRead(t, client, 1); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("client read: %v, want a reset", err)
	}
}

func testClosed(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	mustWrite(t, client, "x")
	await(t, p, readable(7))
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustQuiet(t, p)
	_, readErr := c.Read(make([]byte, 1))
	_, writeErr := c.Write([]byte("x"))
	for i, err := range []error{
		readErr, writeErr, c.CloseWrite(), p.Add(c, 8), p.Remove(c), p.SetRead(c, true), p.SetWrite(c, true),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("call %d on a closed conn: %v, want net.ErrClosed", i, err)
		}
	}
	if err := c.Reset(); err != nil || c.RemoteAddr().IsValid() {
		t.Errorf("Reset = %v, RemoteAddr = %v", err, c.RemoteAddr())
	}
}

func testMove(t *testing.T, w world) {
	p, q := w.newPoller(t), w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	mustWrite(t, client, "x")
	await(t, p, readable(7))
	if err := p.SetWrite(c, true); err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(c); err != nil {
		t.Fatal(err)
	}
	mustQuiet(t, p)
	mustAdd(t, q, c, 1<<40|9)
	if ev := await(t, q, readable(1<<40|9)); ev.Writable {
		t.Fatal("interest in writing moved along")
	}
	mustQuiet(t, p)
	// And back, several times: readiness is reported once each turn.
	for token := range uint64(3) {
		if err := q.Remove(c); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, q, c, token)
	}
	for range 3 {
		events, err := q.Wait(nil, patience)
		if err != nil || len(events) != 1 || events[0].Token != 2 {
			t.Fatalf("Wait = %+v, %v; want one event of token 2", events, err)
		}
	}
}

type stranger struct{ Conn }

func testForeign(t *testing.T, w world) {
	p := w.newPoller(t)
	c, _ := w.pair(t)
	for i, err := range []error{
		p.Remove(c), p.SetRead(c, true), p.SetWrite(c, true),
		p.Add(stranger{c}, 1), p.Remove(stranger{c}), p.SetWrite(stranger{c}, true),
	} {
		if !errors.Is(err, ErrForeign) {
			t.Errorf("call %d: %v, want ErrForeign", i, err)
		}
	}
	if err := p.Add(c, WakeToken); err == nil {
		t.Error("WakeToken was accepted")
	}
	mustAdd(t, p, c, 1)
	if err := p.Add(c, 2); !errors.Is(err, ErrForeign) {
		t.Errorf("second Add: %v, want ErrForeign", err)
	}
}

func testIdentity(t *testing.T, w world) {
	p := w.newPoller(t)
	for gen := range uint64(50) {
		c, client := w.pair(t)
		mustAdd(t, p, c, gen<<32|1)
		mustWrite(t, client, "x")
		await(t, p, readable(gen<<32|1))
		c.Close() // its descriptor is the next conn's
		d, other := w.pair(t)
		mustAdd(t, p, d, gen<<32|2)
		mustQuiet(t, p)
		d.Close()
		other.Close()
		client.Close()
	}
}

func testWake(t *testing.T, w world) {
	p := w.newPoller(t)
	for range 3 {
		p.Wake() // before: coalesced, and not lost
	}
	if events, err := p.Wait(nil, -1); err != nil || len(events) != 0 {
		t.Fatalf("Wait = %v, %v", events, err)
	}
	done := make(chan error)
	go func() { // owned by this test, which waits for it: one Wait for ever
		_, err := p.Wait(nil, -1)
		done <- err
	}()
	time.AfterFunc(5*time.Millisecond, p.Wake)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Wake()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(nil, 0); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Wait after Close: %v", err)
	}
}

func testTimeout(t *testing.T, w world) {
	p := w.newPoller(t)
	kept := []Event{{Token: 3}}
	start := time.Now()
	events, err := p.Wait(kept, 3*time.Millisecond)
	if err != nil || len(events) != 1 || events[0].Token != 3 {
		t.Fatalf("Wait = %v, %v; want what was in dst", events, err)
	}
	if took := time.Since(start); took < 3*time.Millisecond {
		t.Fatalf("Wait came back after %v", took)
	}
}

func testListener(t *testing.T, w world) {
	p := w.newPoller(t)
	l, dial := w.listen(t)
	if _, err := l.Accept(); err != ErrAgain {
		t.Fatalf("Accept = %v, want ErrAgain", err)
	}
	mustAdd(t, p, l, 1)
	mustQuiet(t, p)
	clients := []net.Conn{dial(), dial()}
	for _, client := range clients {
		await(t, p, readable(1)) // reported again while one is left
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != client.LocalAddr().String() {
			t.Fatalf("RemoteAddr = %s, want %s", got, client.LocalAddr())
		}
		mustWrite(t, c, "hello")
		c.Close()
		client.SetReadDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(client); string(got) != "hello" || err != nil {
			t.Fatalf("client read %q, %v", got, err)
		}
	}
	mustQuiet(t, p)
	if err := p.Remove(l); err != nil {
		t.Fatal(err)
	}
	dial()
	mustQuiet(t, p)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Accept()
	for i, err := range []error{err, p.Add(l, 1)} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("call %d on a closed listener: %v", i, err)
		}
	}
}

func testSharedListener(t *testing.T, w world) {
	p, q := w.newPoller(t), w.newPoller(t)
	l, dial := w.listen(t)
	mustAdd(t, p, l, 1)
	mustAdd(t, q, l, 2)
	dial()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, r := range []Poller{p, q} {
			events, err := r.Wait(nil, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if len(events) > 0 {
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
				mustQuiet(t, p)
				mustQuiet(t, q)
				return
			}
		}
	}
	t.Fatal("nobody was told")
}

// testEcho sends through a loop that writes what it reads, with short buffers,
// and gets the same bytes.
func testEcho(t *testing.T, w world) {
	p := w.newPoller(t)
	c, client := w.pair(t)
	mustAdd(t, p, c, 7)
	rng := rand.New(rand.NewPCG(1, 2))
	sent := make([]byte, 300_000)
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	failed := make(chan error, 2)
	go func() { // owned by this test, ends with the last byte; echo sees its end
		_, err := client.Write(sent)
		failed <- errors.Join(err, client.(interface{ CloseWrite() error }).CloseWrite())
	}()
	go func() { failed <- echo(p, c) }() // ends with the client's FIN; waited for below
	client.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(client)
	if err = errors.Join(err, <-failed, <-failed); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("got %d bytes, %v; want the %d that were sent", len(got), err, len(sent))
	}
}

func echo(p Poller, c Conn) error {
	var held []byte
	b := make([]byte, 1999)
	var events []Event
	for {
		var err error
		if events, err = p.Wait(events[:0], -1); err != nil {
			return err
		}
		if len(held) == 0 {
			n, err := c.Read(b)
			if err == io.EOF {
				return c.CloseWrite()
			}
			if err != nil && err != ErrAgain {
				return err
			}
			held = b[:n]
		}
		n, err := c.Write(held)
		held = held[n:]
		if err != nil && err != ErrAgain {
			return err
		}
		full := len(held) > 0
		if err := errors.Join(p.SetRead(c, !full), p.SetWrite(c, full)); err != nil {
			return err
		}
	}
}
