// Package door is the way into an edge: from the accept of a socket to its 101, or to a
// refusal that says when to come back. It ends TLS where the edge does, reads requests,
// opens the tickets that came with them, keeps the gate (package admission) supplied with
// what the edge, its memory and its region can take, and answers /v1/connect.
//
// The edge makes a Door, runs it, and gets each admitted socket through Loop.Adopt. Other
// goroutines talk to its Gate: the loops tell how late they are, the bus asks for grants
// and tells which tickets were used elsewhere, the load figure asks how things are.
//
// Life and goroutines: Run is one goroutine with a poller of its own. Requests and tickets
// are read on the edge's pool, which posts what it read; TLS handshakes that are under way
// have a goroutine each (tlsconn). Nothing else is started. Run ends with its context and
// closes whoever is still here without a word.
//
// Invariants: I5 who comes in is within lanes and confirmed grants; I6 conns do not fall
// because others arrive; I11 a refusal is one write that says when to come back. Limits:
// Config.MaxHandshakes sockets that are neither admitted nor gone, 16 KiB of request each,
// limits.refusals_per_second answers and as many resets; past them nobody is accepted for
// a moment.
//
// It knows no conn, session or channel, and it asks no router, store or bus.
package door

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/inbox"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/tlsconn"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/settings"
)

// Door accepts sockets and keeps them until they are conns, or have heard why not.
// One goroutine with a poller of its own: a thousand half-open requests cost it a
// thousand small buffers and no thread. It alone touches a visitor's socket, so it
// sees a hang-up in every state, and nobody is served who has gone.
//
//	accept -> reading -> deciding (the pool reads the request) -> admitted: a loop's
//	                          |  \-> waiting (for its turn) --/
//	                          \--------\-> leaving: refused, our half shut
//
// An edge that ends TLS has two states in front of reading (tls.go).
type Door struct {
	// immutable after New
	Gate    *Gate
	cfg     Config
	deps    Deps
	metrics *metrics
	desk    desk
	secure  *secure // nil: plain sockets
	probes  []*Probe

	inbox inbox.Inbox[*application] // the pool gives back what it read

	// owned by Run
	poller   poller.Poller
	visitors map[uint64]*visitor
	token    uint64
	buf      []byte
	leaving  int           // visitors in stageLeaving; <= MaxHandshakes / 4
	explicit *rate.Limiter // refusals that say when to come back
	cheap    *rate.Limiter // resets; past them nobody is accepted
	paused   time.Time     // accepting goes on then; zero: it is not paused
	due      time.Time     // the gate may have something to decide
	decided  []admission.Decision
	busy     bool // somebody arrived since the last look
	next     int  // loop that gets the next admitted socket
}

// stage is where a visitor stands. The zero value is the first.
type stage uint8

const (
	stageReading  stage = iota // its request is not whole
	stageDeciding              // the pool reads it; the socket is watched for a hang-up only
	stageWaiting               // for its turn; watched as before
	stageLeaving               // refused; read so that the answer is not eaten by a reset
	stageKnocking              // waits unread for its TLS handshake
	stageShaking               // its TLS handshake is under way
)

// visitor is a socket that is no conn yet, or will not be one.
type visitor struct {
	sock     poller.Conn
	token    uint64
	head     []byte // of the request, so far
	seen     int    // of head, looked at
	accepted time.Time
	deadline time.Time // of the stage; waiting: the gate knows
	stage    stage
	wants    *application       // waiting: what it asked for
	shake    *tlsconn.Handshake // shaking
}

const (
	listenerToken = 0
	acceptBurst   = 64              // accepts in one turn
	lingerTime    = 1 * time.Second // for a refused socket to read why and go
	doorSweep     = 250 * time.Millisecond
	lookEvery     = time.Second          // at the other members
	serveEvery    = 5 * time.Millisecond // of the waiting room: a timer for each token would be dear
	acceptPause   = 100 * time.Millisecond
)

// New makes the door of an edge; deps are the caller's to close until Run. Where the edge
// ends TLS it measures what a handshake costs.
func New(cfg Config, deps Deps, s settings.Hot) (*Door, error) {
	most := s.RefusalsPerSecond
	d := &Door{
		cfg: cfg, deps: deps, poller: deps.Poller, metrics: newMetrics(cfg.Registry, cfg.Series),
		visitors: make(map[uint64]*visitor), buf: make([]byte, wsframe.MaxHandshakeBytes),
		explicit: rate.NewLimiter(rate.Limit(most), most), cheap: rate.NewLimiter(rate.Limit(most), most),
	}
	d.inbox.Wake = deps.Poller.Wake
	d.Gate = newGate(&d.cfg, &d.deps, s, d.metrics)
	d.desk = desk{cfg: &d.cfg, deps: &d.deps, gate: d.Gate}
	for _, l := range deps.Loops {
		d.probes = append(d.probes, &Probe{gate: d.Gate, loop: l})
	}
	if cfg.TLS == nil {
		return d, nil
	}
	var err error
	d.secure, err = newSecure(&d.cfg, &s, deps.Poller.Wake, time.Now())
	if err == nil {
		d.Gate.expect = d.secure.expect
	}
	return d, err
}

// Run turns until ctx ends.
func (d *Door) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.poller.Wake)
	defer stop()
	defer d.shut()
	if err := d.poller.Add(d.deps.Listener, listenerToken); err != nil {
		return err
	}
	d.Gate.Look()
	var events []poller.Event
	now := time.Now()
	swept, looked := now, now
	for ctx.Err() == nil {
		var err error
		if events, err = d.poller.Wait(events[:0], d.timeout(now)); err != nil {
			return err
		}
		now = time.Now()
		for _, ev := range events {
			d.ready(ev, now)
		}
		for _, a := range d.inbox.Take() {
			d.apply(a, now)
		}
		d.turnSecure(now)
		d.serve(now)
		d.resume(now)
		if now.Sub(swept) >= doorSweep {
			swept = now
			d.sweep(now)
		}
		if now.Sub(looked) >= lookEvery {
			looked = now
			d.Gate.Look()
		}
	}
	return nil
}

func (d *Door) timeout(now time.Time) time.Duration {
	wait := doorSweep
	if !d.due.IsZero() {
		wait = min(wait, d.due.Sub(now))
	}
	if !d.paused.IsZero() {
		wait = min(wait, d.paused.Sub(now))
	}
	if d.secure != nil {
		wait = min(wait, max(d.secure.gate.Next(now), serveEvery))
	}
	return max(wait, 0)
}

func (d *Door) ready(ev poller.Event, now time.Time) {
	if ev.Token == listenerToken {
		d.accept(now)
		return
	}
	v := d.visitors[ev.Token]
	switch {
	case v == nil:
	case v.stage == stageReading, v.stage == stageLeaving:
		d.read(v, now)
	case v.stage == stageShaking:
		d.feedShake(v)
	case ev.Hangup:
		d.hungUp(v)
	}
}

func (d *Door) accept(now time.Time) {
	if !d.paused.IsZero() {
		return
	}
	for range acceptBurst {
		if len(d.visitors) >= d.cfg.MaxHandshakes && !d.mayReset(now) {
			return
		}
		sock, err := d.deps.Listener.Accept()
		switch {
		case errors.Is(err, poller.ErrAgain):
			return
		case errors.Is(err, poller.ErrDescriptors):
			d.acceptFromReserve()
			return
		case err != nil:
			d.cfg.Log.Warn("accept", "err", err)
			return
		}
		d.metrics.accepted.Inc()
		if len(d.visitors) >= d.cfg.MaxHandshakes {
			d.metrics.refused(refusedDoor)
			sock.Reset()
			continue
		}
		v := &visitor{sock: sock, accepted: now, deadline: now.Add(d.cfg.HandshakeTimeout)}
		if d.keep(v) && d.secure != nil {
			d.knock(v, now)
		}
	}
}

func (d *Door) keep(v *visitor) bool {
	d.token++
	v.token = d.token
	if err := d.poller.Add(v.sock, v.token); err != nil {
		v.sock.Close()
		return false
	}
	d.visitors[v.token] = v
	d.metrics.handshakes.Set(float64(len(d.visitors)))
	return true
}

// forget takes a visitor out; its socket stays open, and the poller has it.
func (d *Door) forget(v *visitor) {
	switch v.stage {
	case stageLeaving:
		d.leaving--
	case stageShaking:
		v.shake.Abort()
	}
	delete(d.visitors, v.token)
	d.metrics.handshakes.Set(float64(len(d.visitors)))
}

// end is forget and the end of the socket.
func (d *Door) end(v *visitor) {
	d.forget(v)
	v.sock.Close()
}

// hungUp ends a visitor that has gone before its turn; it takes nothing from the
// rate.
func (d *Door) hungUp(v *visitor) {
	switch v.stage {
	case stageWaiting:
		d.Gate.hungUp(v.token)
	case stageKnocking:
		d.secure.gate.Gone(v.token)
	}
	d.metrics.hungUp.Inc()
	d.end(v)
}

func (d *Door) read(v *visitor, now time.Time) {
	n, err := v.sock.Read(d.buf)
	switch {
	case errors.Is(err, poller.ErrAgain):
		return
	case err != nil:
		d.end(v)
		return
	case v.stage == stageLeaving:
		return // whatever it still says
	}
	v.head = append(v.head, d.buf[:n]...)
	end, err := wsframe.HeadEnd(v.head, v.seen)
	v.seen = len(v.head)
	switch {
	case err != nil:
		d.metrics.refused(refusedRequest)
		d.say(v, errorResponse(err), now)
		return
	case end == 0:
		return
	}
	if err := d.poller.SetRead(v.sock, false); err != nil {
		d.end(v)
		return
	}
	v.stage = stageDeciding
	token, head, rest := v.token, v.head[:end:end], v.head[end:]
	v.head = nil
	if !d.deps.Submit(func() { d.inbox.Post(d.desk.read(token, head, rest)) }) {
		// The pool is full of tokens to check: more clients would wait for it in vain.
		// What it costs to tell them so is the door's.
		a := d.desk.read(token, head, rest)
		a.turnAway = true
		d.apply(a, now)
	}
}

// apply goes on with a visitor whose request the pool has read.
func (d *Door) apply(a *application, now time.Time) {
	v := d.visitors[a.token]
	if v == nil {
		return // gone meanwhile
	}
	if a.response != nil {
		if a.refused {
			d.metrics.refused(refusedRequest)
		}
		d.say(v, a.response, now)
		return
	}
	d.busy = true
	a.arrival.ID = v.token
	v.wants = a
	if a.turnAway {
		d.decide(v, d.Gate.turnAway(a.arrival), now)
		return
	}
	d.decide(v, d.Gate.arrive(a.arrival), now)
}

// serve asks the gate for the turns of those who wait.
func (d *Door) serve(now time.Time) {
	if d.due.IsZero() || now.Before(d.due) {
		return
	}
	again := time.Duration(0)
	d.decided, again = d.Gate.serve(d.decided[:0])
	for _, decision := range d.decided {
		if v := d.visitors[decision.ID]; v != nil {
			d.decide(v, decision, now)
		}
	}
	d.due = time.Time{}
	if again < time.Hour {
		d.due = now.Add(max(again, serveEvery))
	}
}

func (d *Door) decide(v *visitor, decision admission.Decision, now time.Time) {
	switch decision.Verdict {
	case admission.Admit:
		d.admit(v, decision, now)
	case admission.Wait:
		v.stage = stageWaiting
		if at := now.Add(serveEvery); d.due.IsZero() || at.Before(d.due) {
			d.due = at
		}
	default:
		d.refuse(v, decision, now)
	}
}

// admit makes a conn of a visitor: 101, and a loop has it.
func (d *Door) admit(v *visitor, decision admission.Decision, now time.Time) {
	a := v.wants
	d.forget(v)
	response := wsframe.AppendAccept(make([]byte, 0, 256), a.request, a.protocol)
	if n, err := v.sock.Write(response); err != nil || n < len(response) || d.poller.Remove(v.sock) != nil {
		v.sock.Close()
		return
	}
	m := &Admitted{Sock: v.sock, Rest: a.rest, Ticket: a.ticket, At: now}
	if len(d.cfg.TrustedProxies) > 0 {
		m.Client = proxies(d.cfg.TrustedProxies).client(v.sock.RemoteAddr().Addr(), a.request)
	}
	d.metrics.admit(decision)
	d.spend(decision)
	d.next = (d.next + 1) % len(d.deps.Loops)
	d.deps.Loops[d.next].Adopt(m)
}

// spend has the other edges told that a ticket is good no more.
func (d *Door) spend(decision admission.Decision) {
	if decision.Spent != 0 {
		d.deps.Spent(decision.Spent)
	}
}

func (d *Door) sweep(now time.Time) {
	most := d.Gate.settings.Load().RefusalsPerSecond
	for _, l := range []*rate.Limiter{d.explicit, d.cheap} {
		if l.Burst() != most {
			l.SetLimitAt(now, rate.Limit(most))
			l.SetBurstAt(now, most)
		}
	}
	d.due = now // the rates may have changed, or this edge begun to leave
	if d.busy {
		for _, p := range d.probes {
			p.send(now)
		}
	}
	d.busy = false
	d.Gate.observe()
	for _, v := range d.visitors {
		if v.stage == stageWaiting || v.stage == stageKnocking || now.Before(v.deadline) {
			continue
		}
		if v.stage != stageLeaving {
			d.metrics.refused(refusedSlow)
		}
		d.end(v)
	}
	d.metrics.show(d.Gate.Status(), d.Gate.memoryRoom())
	if d.secure != nil {
		d.metrics.tlsWaiting.Set(float64(d.secure.gate.Waiting()))
	}
}

func (d *Door) shut() {
	d.deps.Listener.Close()
	for _, v := range d.visitors {
		d.end(v)
	}
	d.poller.Close()
}

// Addr is where clients connect.
func (d *Door) Addr() string { return d.deps.Listener.Addr().String() }

// Close gives the port back if Run was never called. After Run it does nothing.
func (d *Door) Close() {
	d.deps.Listener.Close()
	if d.deps.Reserve != nil {
		d.deps.Reserve.Close()
	}
}
