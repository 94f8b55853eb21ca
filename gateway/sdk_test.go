package gateway

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/spillway-io/spillway/gateway/client"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// user is a client made with the SDK, on one channel, and what it has seen.
type user struct {
	*sdk.Client
	tokens atomic.Int32 // questions to its provider
	faults atomic.Int32 // events out of order, and gaps
	last   atomic.Uint64

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// user makes a client and waits until it is subscribed.
func (w *world) user(channel, token string, opts ...sdk.Option) *user {
	w.t.Helper()
	return w.newUser(channel, token, opts...).up(w.t, channel)
}

// up connects and waits until it is subscribed.
func (u *user) up(t *testing.T, channel string) *user {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := u.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if err := u.Subscription(channel).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return u
}

func (w *world) newUser(channel, token string, opts ...sdk.Option) *user {
	w.t.Helper()
	return w.newUserAt(w.scheme()+"://"+w.edge.Addr()+"/v1/ws", channel, token, opts...)
}

func (w *world) scheme() string {
	if w.edge.cfg.TLS != nil {
		return "wss"
	}
	return "ws"
}

func (w *world) newUserAt(url, channel, token string, opts ...sdk.Option) *user {
	w.t.Helper()
	u := &user{}
	hurry := func(d time.Duration) time.Duration { return d / 50 }
	c, err := sdk.New(url, append([]sdk.Option{
		sdk.WithRandom(hurry), sdk.WithDialer(u.dial),
		sdk.WithToken(func(context.Context) (string, error) { u.tokens.Add(1); return token, nil }),
	}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Client = c
	w.t.Cleanup(func() { c.Close() })
	_, err = c.Subscribe(channel, sdk.Handler{
		OnEvent: func(e sdk.Event) {
			if u.last.Swap(e.Offset)+1 != e.Offset {
				u.faults.Add(1)
			}
		},
		OnGap: func(sdk.Gap) { u.faults.Add(1) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

func (u *user) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		u.mu.Lock()
		u.conns = append(u.conns, nc)
		u.mu.Unlock()
	}
	return nc, err
}

// cut ends the newest connection without a word.
func (u *user) cut() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conns[len(u.conns)-1].Close()
}

// cutOne ends the newest connection or the one before it.
func (u *user) cutOne(i int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conns[max(len(u.conns)-1-i%2, 0)].Close()
}

func (u *user) caughtUp(t *testing.T, head uint64) {
	t.Helper()
	eventually(t, fmt.Sprint("caught up to ", head), func() bool { return u.last.Load() == head })
	if n := u.faults.Load(); n > 0 {
		t.Errorf("%d faults in the stream", n)
	}
}

// A client that was cut off shows its ticket: the session goes on, nobody looks at a
// token, nobody is asked for one, and no event is missed.
func TestSDKResumesByTicketAndAsksNobody(t *testing.T) {
	w := newResuming(t, nil)
	u := w.user("chat:1", tokenOf(t, nil))
	session := u.Info().Session
	for i := range uint64(5) {
		head := w.publish("chat:1", "1")
		u.caughtUp(t, head)
		u.cut()
		w.publish("chat:1", "2")
		eventually(t, "resumed", func() bool { return u.Stats().Resumes == i+1 && u.State() == sdk.Connected })
		u.caughtUp(t, head+1)
	}
	if u.tokens.Load() != 1 || w.verifier.n.Load() != 1 {
		t.Errorf("%d tokens were asked for, %d checked", u.tokens.Load(), w.verifier.n.Load())
	}
	if got := u.Info().Session; got != session || session == "" {
		t.Errorf("session %q became %q", session, got)
	}
	if st := u.Stats(); st.Connects != 6 || st.Interruptions != 5 {
		t.Errorf("%+v", st)
	}
}

// sendAway tells every client of an edge to go to another one at once.
func (r *resuming) sendAway(to *resuming) { r.sendTo(to.edge.Addr(), to.edge.cfg.ID) }

func (r *resuming) sendTo(addr, target string) {
	r.onSessions(func(c *conn) {
		if c.superseded || c.closing {
			return
		}
		now := time.Now()
		c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
			Reason: "drain", DeadlineMs: 10_000, Url: "ws://" + addr + "/v1/ws",
			Ticket: commands{c}.movedTicket("test", target, now, now.Add(5*time.Second)),
		}}})
	})
}

// Under load, all clients move from edge to edge and back: no stream is interrupted, no
// event is missed or seen twice, with history and without, and no token is needed.
func TestSDKMovesBetweenEdgesUnderLoad(t *testing.T) {
	from := newResuming(t, nil)
	to := newResuming(t, func(c *Config, _ *Deps) { c.ID = "edge-2" })
	const users, waves = 40, 6
	channels := []string{"chat:1", "chat:2", "chat:3", "chat:4"}
	for _, w := range []*resuming{from, to} {
		for _, c := range channels[2:] {
			w.set(func() { w.first[c] = 1 << 60 }) // nothing of it can be recovered
		}
	}
	heads := map[string]uint64{}
	publish := func() {
		from.mu.Lock()
		to.mu.Lock()
		defer from.mu.Unlock()
		defer to.mu.Unlock()
		for _, c := range channels {
			heads[c] = from.publishLocked(c, `"x"`)
			to.publishLocked(c, `"x"`)
		}
	}
	list := make([]*user, users)
	for i := range list {
		list[i] = from.user(channels[i%len(channels)], tokenOf(t, nil))
	}
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	moved := func(wave uint64) bool {
		for _, u := range list {
			if u.Stats().Moves < wave {
				return false
			}
		}
		return true
	}
	deadline := time.Now().Add(6 * patience)
	for wave := range uint64(waves) {
		from.sendAway(to)
		for n := 0; n < 20 || !moved(wave+1); n++ {
			publish()
			<-ticker.C
			if time.Now().After(deadline) {
				t.Fatalf("wave %d does not end: %+v", wave, list[0].Stats())
			}
		}
		from, to = to, from
	}
	checked := from.verifier.n.Load() + to.verifier.n.Load()
	if checked != users {
		t.Errorf("%d tokens were checked for %d clients", checked, users)
	}
	for i, u := range list {
		u.caughtUp(t, heads[channels[i%len(channels)]])
		st := u.Stats()
		if st.Interruptions != 0 || st.Moves != waves || st.Gaps != 0 || st.TokenCalls != 1 || st.Resumes != waves || u.State() != sdk.Connected {
			t.Errorf("client %d: %v, %+v", i, u.State(), st)
		}
	}
}

// A hint to an edge that is gone costs no stream: the client stays, tries the usual
// list, which is the edge it wants to leave, and follows the next hint.
func TestSDKOutlivesAHintToADeadEdge(t *testing.T) {
	from := newResuming(t, nil)
	to := newResuming(t, func(c *Config, _ *Deps) { c.ID = "edge-2" })
	u := from.user("chat:1", tokenOf(t, nil))
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	from.sendTo(gone.Addr().String(), "edge-3")
	eventually(t, "the hint and the same edge have failed", func() bool { return u.Stats().MoveFailures >= 2 })
	u.caughtUp(t, from.publish("chat:1", "1"))
	to.publish("chat:1", "1")
	from.sendAway(to)
	eventually(t, "moved", func() bool { return u.Stats().Moves == 1 })
	u.caughtUp(t, to.publish("chat:1", "2"))
	if st := u.Stats(); st.Interruptions != 0 || st.TokenCalls != 1 || u.Info().Node != "edge-2" {
		t.Errorf("%+v, %+v", st, u.Info())
	}
}

// Connections that are cut in the middle of a move, at any moment and on either side,
// cost no event and no token.
func TestSDKIsCutWhileItMoves(t *testing.T) {
	from := newResuming(t, nil)
	to := newResuming(t, func(c *Config, _ *Deps) { c.ID = "edge-2" })
	const users = 30
	list := make([]*user, users)
	for i := range list {
		list[i] = from.user("chat:1", tokenOf(t, nil), sdk.WithURLs("ws://"+to.edge.Addr()+"/v1/ws"))
	}
	var head uint64
	publish := func() {
		from.mu.Lock()
		to.mu.Lock()
		defer from.mu.Unlock()
		defer to.mu.Unlock()
		head = from.publishLocked("chat:1", "1")
		to.publishLocked("chat:1", "1")
	}
	ticker := time.NewTicker(200 * time.Microsecond)
	defer ticker.Stop()
	for range 5 {
		from.sendAway(to)
		for i, u := range list {
			publish()
			u.cutOne(i)
			<-ticker.C
		}
		eventually(t, "all are connected again", func() bool {
			for _, u := range list {
				if u.State() != sdk.Connected {
					return false
				}
			}
			return true
		})
		from, to = to, from
	}
	publish()
	for i, u := range list {
		u.caughtUp(t, head)
		if st := u.Stats(); st.TokenCalls != 1 || st.Gaps != 0 {
			t.Errorf("client %d: %+v", i, st)
		}
	}
}

// A crowd at a door that lets ten in a second: whoever is refused comes back once, in
// the slot told and with the pass for it, and is let in.
func TestSDKComesBackInItsSlotWithItsPass(t *testing.T) {
	w := newResuming(t, func(c *Config, _ *Deps) {
		c.Admission.FreshPerSecond, c.Admission.FreshBurst, c.Admission.Wait = 10, 1, 300*time.Millisecond
	})
	list := make([]*user, 15)
	for i := range list {
		list[i] = w.newUser("chat:1", tokenOf(t, nil))
	}
	for _, u := range list {
		if err := u.Start(); err != nil {
			t.Fatal(err)
		}
	}
	busy := uint64(0)
	for i, u := range list {
		eventually(t, "connected", func() bool { return u.State() == sdk.Connected })
		st := u.Stats()
		busy += st.Busy
		if st.Busy > 1 || st.Failures != st.Busy || st.Attempts != st.Busy+1 || st.TokenCalls != 1 {
			t.Errorf("client %d: %+v", i, st)
		}
	}
	if busy < uint64(len(list))/2 {
		t.Errorf("%d refusals of %d clients: the door was no door", busy, len(list))
	}
}
