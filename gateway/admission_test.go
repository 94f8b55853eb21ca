package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/ticket"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// lanes sets slow lanes, so that a test takes a second or two.
func lanes(freshPerSecond, burst int, wait time.Duration) func(*Config, *Deps) {
	return func(c *Config, _ *Deps) {
		c.Anonymous = true
		a := &c.Admission
		a.FreshPerSecond, a.FreshBurst, a.ResumePerSecond, a.ResumeBurst, a.Wait, a.Adaptive = freshPerSecond, burst, freshPerSecond, burst, wait, false
	}
}

// knock opens a socket and asks for a WebSocket; the answer is not waited for.
func (w *world) knock(tickets ...string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	offered := wire.ProtocolJSON
	for _, t := range tickets {
		offered += ", " + wire.TicketPrefix + t
	}
	if _, err := io.WriteString(conn, upgradeRequest("Sec-WebSocket-Protocol: "+offered+"\r\n")); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// verdict is what a knock was answered.
type verdict struct {
	admitted bool
	busy     struct {
		Type         string `json:"type"`
		RetryAfterMS int64  `json:"retry_after_ms"`
		Scope        string `json:"scope"`
		URL          string `json:"url"`
		Ticket       string `json:"ticket"`
	}
	all []byte // as the first read returned it
}

// hear reads once: a refusal is one write.
func (w *world) hear(conn net.Conn) (v verdict) {
	w.t.Helper()
	b := make([]byte, 16<<10)
	n, err := conn.Read(b)
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	v.all = b[:n]
	head, rest, _ := bytes.Cut(v.all, []byte("\r\n\r\n"))
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 101 ")) {
		w.t.Fatalf("answered %q", v.all)
	}
	if v.admitted = len(rest) == 0; v.admitted {
		return v
	}
	from, to := bytes.IndexByte(rest, '{'), bytes.LastIndexByte(rest, '}')
	if from < 0 || json.Unmarshal(rest[from:to+1], &v.busy) != nil || v.busy.Type != "busy" {
		w.t.Fatalf("refused with %q", v.all)
	}
	return v
}

func (w *world) admitted(l admission.Lane) int { return int(w.metric("admitted_total", l.String())) }

func TestThreeTimesTheRateIsAdmittedAsTheBurstAndThenTheRate(t *testing.T) {
	const rate, burst = 40, 20
	w := newWorldOf(t, lanes(rate, burst, 100*time.Millisecond))
	start := time.Now()
	for time.Since(start) < 2*time.Second {
		w.knock()
		<-time.After(time.Second / (3 * rate))
	}
	eventually(t, "nobody waits", func() bool { return w.edge.gate.Status().Waiting[admission.LaneFresh] == 0 })
	most := burst + rate*time.Since(start).Seconds()
	if n := float64(w.admitted(admission.LaneFresh)); n > most+1 || n < 0.9*(burst+rate*2) {
		t.Errorf("%v admitted, at most %v may be and %v should", n, most, burst+rate*2)
	}
}

func TestEveryRefusedClientHearsASlotOfItsOwnInOneWrite(t *testing.T) {
	w := newResuming(t, lanes(10, 1, 0))
	if !w.hear(w.knock()).admitted {
		t.Fatal("the burst was refused")
	}
	last := int64(0)
	for range 5 {
		conn := w.knock()
		v := w.hear(conn)
		if v.admitted {
			continue // its token had come
		}
		if v.busy.RetryAfterMS <= last || v.busy.Scope != "region" {
			t.Errorf("told %+v after a slot in %d ms", v.busy, last)
		}
		last = v.busy.RetryAfterMS
		code := binary.BigEndian.AppendUint16(nil, uint16(wire.CloseBusy))
		if !bytes.HasSuffix(v.all, append(code, wire.CloseBusy.Name()...)) {
			t.Errorf("the first write has no close frame: %q", v.all)
		}
		pass, err := w.edge.credentials.Open(v.busy.Ticket, time.Now())
		if err != nil || pass.Kind != ticket.Pass || pass.Lane != uint8(admission.LaneFresh) ||
			math.Abs(float64(time.Until(pass.SlotFrom).Milliseconds()-v.busy.RetryAfterMS)) > 500 {
			t.Errorf("the pass: %+v, %v", pass, err)
		}
		if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil {
			t.Errorf("after it came %q, %v: a reset eats the close code", rest, err)
		}
	}
	if w.verifier.n.Load() != 0 {
		t.Error("a token was looked at")
	}
}

func TestPlainHTTPIsRefusedWithRetryAfter(t *testing.T) {
	w := newWorldOf(t, lanes(1, 1, 0))
	w.hear(w.knock())
	got := w.raw(upgradeRequest(""))
	if !strings.HasPrefix(got, "HTTP/1.1 503") || !strings.Contains(got, "\r\nRetry-After: ") || !strings.Contains(got, `"retry_after_ms":`) {
		t.Errorf("%q", got)
	}
}

func (w *world) sealed(t *testing.T, k ticket.Ticket, who *auth.Claims) string {
	t.Helper()
	text, err := w.edge.credentials.box.Seal(k, who, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAPassIsServedBeforeNewcomersAndOnce(t *testing.T) {
	w := newResuming(t, lanes(5, 1, 3*time.Second))
	w.hear(w.knock())
	var newcomers []net.Conn
	for range 8 {
		newcomers = append(newcomers, w.knock())
	}
	eventually(t, "they wait", func() bool { return w.edge.gate.Status().Waiting[admission.LaneFresh] >= 7 })
	pass := w.sealed(t, ticket.Ticket{
		Kind: ticket.Pass, Edge: "edge-2", Lane: uint8(admission.LaneFresh), Nonce: 7,
		SlotFrom: time.Now(), SlotUntil: time.Now().Add(admission.PassLife),
	}, nil)
	holder := w.knock(pass)
	eventually(t, "the pass waits too", func() bool { return w.edge.gate.Status().Waiting[admission.LaneFresh] >= 7 })
	if v := w.hear(holder); !v.admitted {
		t.Fatalf("the holder of a pass was refused: %q", v.all)
	}
	if n := w.edge.gate.Status().Waiting[admission.LaneFresh]; n < 4 {
		t.Errorf("only %d newcomers are still waiting", n)
	}
	again := w.knock(pass) // now a newcomer like others
	for _, c := range newcomers {
		w.hear(c)
	}
	w.hear(again)
}

func TestWhoHangsUpWhileWaitingTakesNothingFromTheRate(t *testing.T) {
	w := newWorldOf(t, lanes(4, 1, 3*time.Second))
	w.hear(w.knock())
	var gone []net.Conn
	for range 9 {
		gone = append(gone, w.knock())
	}
	eventually(t, "they wait", func() bool { return w.edge.gate.Status().Waiting[admission.LaneFresh] >= 8 })
	before := w.admitted(admission.LaneFresh)
	for _, c := range gone {
		c.Close()
	}
	eventually(t, "their going is seen", func() bool { return w.edge.gate.Status().Waiting[admission.LaneFresh] == 0 })
	if !w.hear(w.knock()).admitted {
		t.Error("refused, though nobody waits")
	}
	if n := w.admitted(admission.LaneFresh) - before; n > 3 {
		t.Errorf("%d were admitted, most of them gone", n)
	}
	if n := w.metric("hung_up_total") + w.metric("late_total"); n < 6 {
		t.Errorf("%v hang-ups counted", n)
	}
}

func TestFreshClientsLeaveTheMarginToThoseWhoComeBack(t *testing.T) {
	w := newResuming(t, func(c *Config, d *Deps) {
		lanes(1000, 1000, time.Second)(c, d)
		c.MaxConns, c.Margin = 3, 1
	})
	resume := w.sealed(t, ticket.Ticket{Kind: ticket.Resume, Edge: "edge-2"}, auth.Anonymous())
	for range 2 {
		if !w.hear(w.knock()).admitted {
			t.Fatal("refused below the margin")
		}
	}
	if v := w.hear(w.knock()); v.admitted || v.busy.Scope != "node" || v.busy.Ticket != "" {
		t.Errorf("a fresh client in the margin: %+v", v)
	}
	if !w.hear(w.knock(resume)).admitted {
		t.Error("who comes back was refused below max_conns")
	}
	if w.hear(w.knock(resume)).admitted {
		t.Error("admitted above max_conns")
	}
}

// region is a membership that a test makes up.
type region struct {
	*world
	members []*presence.Member
	figures map[presence.Key]*presence.Figure
}

func (r *region) Snapshot() *presence.Snapshot               { return presence.NewSnapshot(r.members, 1) }
func (r *region) Figures() map[presence.Key]*presence.Figure { return r.figures }

// add makes an edge with so much headroom.
func (r *region) add(id, in string, headroom uint64, resumes float64) {
	m := &presence.Member{
		Id: id, Role: gatewayv1.Role_ROLE_EDGE, Region: in, State: gatewayv1.State_STATE_SERVING, Capacity: 1000,
		Address: "wss://" + id + ".example/v1/ws",
	}
	r.members = append(r.members, m)
	r.figures[presence.KeyOf(m)] = &presence.Figure{Id: id, Headroom: headroom, ResumePerSecond: resumes}
}

func withRegion(r *region, more func(*Config, *Deps)) func(*Config, *Deps) {
	return func(c *Config, d *Deps) {
		more(c, d)
		r.world = d.Members.(*world)
		r.figures = make(map[presence.Key]*presence.Figure)
		r.add("edge-2", "default", 100, 200)
		r.add("edge-3", "default", 300, 100)
		r.add("edge-4", "default", 0, 0)
		r.add("edge-5", "elsewhere", 9000, 0)
		d.Members = r
	}
}

func (w *world) advice(t *testing.T) (a struct {
	URL     string `json:"url"`
	AfterMS *int64 `json:"after_ms"`
	Ticket  string `json:"ticket"`
}) {
	t.Helper()
	resp, err := http.Get("http://" + w.edge.Addr() + "/v1/connect")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-store" || a.AfterMS == nil {
		t.Fatalf("%v %v %v", resp.Status, resp.Header, err)
	}
	return a
}

func TestAdviceIsDrawnByHeadroomAndSaysWhenToCome(t *testing.T) {
	w := newResuming(t, withRegion(new(region), lanes(1, 1, 0)))
	drawn := map[string]int{}
	for range 40 {
		a := w.advice(t)
		drawn[a.URL]++
	}
	if drawn["wss://edge-3.example/v1/ws"] <= drawn["wss://edge-2.example/v1/ws"] || drawn["wss://edge-2.example/v1/ws"] == 0 || len(drawn) != 2 {
		t.Errorf("drawn with headroom 100 and 300: %v", drawn)
	}
	for w.hear(w.knock()).admitted { // until there is no token
	}
	a := w.advice(t)
	if *a.AfterMS <= 0 || *a.AfterMS > 30_000 {
		t.Fatalf("no token, and the advice is %+v", a)
	}
	if pass, err := w.edge.credentials.Open(a.Ticket, time.Now()); err != nil || pass.Kind != ticket.Pass {
		t.Errorf("the ticket: %+v, %v", pass, err)
	}
}

func TestAFullEdgeSendsItsClientsToOthers(t *testing.T) {
	w := newResuming(t, withRegion(new(region), func(c *Config, d *Deps) {
		lanes(100, 100, 0)(c, d)
		c.MaxConns, c.Margin = 2, 1
	}))
	w.hear(w.knock())
	v := w.hear(w.knock())
	if v.admitted || !strings.HasPrefix(v.busy.URL, "wss://edge-") || v.busy.RetryAfterMS < 250 || v.busy.RetryAfterMS > 1000 {
		t.Errorf("%+v", v.busy)
	}
}

func TestTheRetryWindowFollowsFromTheRatesOfTheOthers(t *testing.T) {
	w := newResuming(t, withRegion(new(region), lanes(100, 100, 0)))
	w.edge.gate.Look()
	w.edge.counts.conns.Add(1500) // and 300 resumes a second elsewhere
	defer w.edge.counts.conns.Add(-1500)
	if ms := w.edge.gate.RetryWindow(); ms != 5000 {
		t.Errorf("%d ms for 1,500 conns and 300/s", ms)
	}
	c := w.connect(byToken(tokenOf(t, nil)))
	hello := c.expect(`{"type":"connected"}`)
	c.send(`{"type":"ping","id":2}`)
	pong := c.expect(`{"type":"pong"}`)
	if hello["retry_window_ms"] != float64(w.edge.gate.RetryWindow()) || pong["retry_window_ms"] != hello["retry_window_ms"] {
		t.Errorf("connected says %v ms, pong %v, it is %d", hello["retry_window_ms"], pong["retry_window_ms"], w.edge.gate.RetryWindow())
	}
}

func TestMovedClientsComeOnTheGrantTheyWereGiven(t *testing.T) {
	w := newResuming(t, lanes(1, 1, 0))
	offer := w.edge.gate.Offer(&gatewayv1.GrantRequest{Operation: "op", Edge: "edge-2", Number: 1, Movable: 3, WindowMs: 1000, Region: "default"})
	if offer.Movable != 3 {
		t.Fatalf("offered %v", offer)
	}
	if !w.edge.gate.Confirm(&gatewayv1.GrantConfirm{Operation: "op", Edge: "edge-2", Number: 1, Movable: 3, LastSlotMs: 1000}).Held {
		t.Fatal("not held")
	}
	var f presence.Figure
	if w.edge.Load(&f); f.Granted != 3 || f.Headroom != f.Capacity-3 || f.MovedPerSecond != 500 || f.FreshPerSecond != 1 {
		t.Errorf("figure %v", &f)
	}
	for _, target := range []string{"edge-1", "edge-1", ""} {
		moved := w.sealed(t, ticket.Ticket{Kind: ticket.Moved, Edge: "edge-2", Operation: "op", Target: target, SlotUntil: time.Now().Add(time.Second)}, auth.Anonymous())
		if !w.hear(w.knock(moved)).admitted {
			t.Fatal("refused with a grant")
		}
	}
	eventually(t, "three came as moved", func() bool { return w.admitted(admission.LaneMoved) == 3 })
	other := w.sealed(t, ticket.Ticket{Kind: ticket.Moved, Edge: "edge-2", Operation: "op", Target: "edge-1"}, auth.Anonymous())
	w.hear(w.knock(other))
	eventually(t, "who comes on a used grant is a resume", func() bool { return w.admitted(admission.LaneResume) == 1 })
	if n := w.admitted(admission.LaneMoved); n != 3 {
		t.Errorf("%d came on three grants", n)
	}
}

func TestEstablishedConnsAreServedWhileOthersAreRefused(t *testing.T) {
	w := newWorldOf(t, lanes(1, 1, 200*time.Millisecond))
	c := w.connect(`,"subscriptions":[{"channel":"a"}]`)
	c.expect(`{"type":"connected"}`)
	storm, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan struct{})
	var refused atomic.Int64
	go func() { // ends with stop; waited for below
		defer close(done)
		for storm.Err() == nil {
			conn, err := net.Dial("tcp", w.edge.Addr())
			if err != nil {
				continue
			}
			_, _ = io.WriteString(conn, upgradeRequest("Sec-WebSocket-Protocol: "+wire.ProtocolJSON+"\r\n"))
			refused.Add(1)
			conn.Close()
		}
	}()
	for i := 1; i <= 200 || refused.Load() < 200; i++ {
		w.publish("a", "1")
		c.expectEvents("a", i, i)
	}
	stop()
	<-done
}

func TestPastTheBudgetOfRefusalsClientsAreReset(t *testing.T) {
	w := newWorldOf(t, func(c *Config, d *Deps) {
		lanes(1, 1, 0)(c, d)
		c.RefusalsPerSecond = 5
	})
	w.hear(w.knock())
	for range 40 {
		w.knock()
	}
	eventually(t, "some are reset, and accepting pauses", func() bool {
		return w.metric("refused_total", "reset") > 0 && w.metric("accept_pauses_total") > 0
	})
}

func TestAReloadChangesTheRatesAndTouchesNoSocket(t *testing.T) {
	w := newWorldOf(t, lanes(1, 1, 0))
	c := w.connect("")
	c.expect(`{"type":"connected"}`)
	for w.hear(w.knock()).admitted {
	}
	bad := w.edge.Settings()
	bad.Admission.FreshPerSecond, bad.PingInterval, bad.MaxConns = 1000, 0, 5
	if err := w.edge.Reload(bad); err == nil || !strings.Contains(err.Error(), "ping_interval") || !strings.Contains(err.Error(), "max_conns") {
		t.Errorf("bad settings: %v", err)
	}
	if w.edge.Settings().Admission.FreshPerSecond != 1 {
		t.Error("a part of bad settings was taken")
	}
	good := w.edge.Settings()
	good.Admission.FreshPerSecond, good.Admission.FreshBurst, good.Admission.Wait = 1000, 1000, time.Second
	good.PingInterval = 7 * time.Second
	if err := w.edge.Reload(good); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if !w.hear(w.knock()).admitted {
			t.Fatal("refused at the new rate")
		}
	}
	w.connect("").expect(`{"type":"connected","ping_interval_ms":7000}`)
	c.send(`{"type":"ping","id":9}`)
	c.expect(`{"type":"pong","id":9}`)
	reloads := w.edge.metrics.reloads
	if counter(t, reloads.WithLabelValues(reloadDone)) != 1 || counter(t, reloads.WithLabelValues(reloadRefused)) != 1 {
		t.Error("reloads are not counted")
	}
}

// I8: who is ready is not a question of load.
func TestALoadedEdgeStaysReadyUntilItLeaves(t *testing.T) {
	w := newWorldOf(t, func(c *Config, d *Deps) {
		lanes(1, 1, 0)(c, d)
		c.MaxConns, c.Margin = 1, 0
		c.DrainNotice = time.Second // in which it refuses and closes nobody
	})
	eventually(t, "it has joined", w.edge.Ready)
	release := make(chan struct{})
	for w.edge.checks.Submit(func() { <-release }) {
	}
	for _, l := range w.edge.loops {
		l.inbox.Post(job(func(*loop) { <-release }))
	}
	w.set(func() { w.away = true })
	for range 50 {
		if v := w.hear(w.knock()); v.admitted || v.busy.RetryAfterMS == 0 {
			t.Fatalf("with no room to read requests: %q", v.all)
		}
	}
	if !w.edge.Ready() {
		t.Error("a loaded edge is not ready")
	}
	close(release)
	w.leave()
	eventually(t, "a leaving edge is not ready", func() bool { return !w.edge.Ready() })
	if v := w.hear(w.knock()); v.admitted {
		t.Error("a leaving edge admits")
	}
}

// behind is a router that is behind with backfill.
type behind struct{ atomic.Int64 }

func (b *behind) BackfillLag() time.Duration { return time.Duration(b.Load()) }

func TestArrivalsSlowDownWhileRoutersAreBehindOrLoopsLate(t *testing.T) {
	lag := new(behind)
	w := newWorldOf(t, func(c *Config, d *Deps) {
		lanes(100, 1, 0)(c, d)
		c.Admission.Adaptive, d.Lag = true, lag
	})
	fresh := func() float64 {
		var f presence.Figure
		w.edge.Load(&f)
		return f.FreshPerSecond
	}
	if fresh() != 100 {
		t.Fatalf("unloaded: %v a second", fresh())
	}
	lag.Store(int64(1500 * time.Millisecond))
	eventually(t, "a tenth of the rate", func() bool { return fresh() == 10 })
	lag.Store(0)
	eventually(t, "the rate rises again", func() bool { return fresh() > 10 })
	release := make(chan struct{})
	w.edge.loops[0].inbox.Post(job(func(*loop) { <-release }))
	rising, last := true, fresh()
	eventually(t, "the rate falls while a loop is stuck", func() bool {
		w.hear(w.knock())
		rising, last = fresh() >= last, fresh()
		return !rising
	})
	close(release)
}
