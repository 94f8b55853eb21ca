package gateway

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/tlsconn"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// door accepts sockets and keeps them until they are conns, or have heard why not.
// One goroutine with a poller of its own: a thousand half-open requests cost it a
// thousand small buffers and no thread. It alone touches a visitor's socket, so it
// sees a hang-up in every state, and nobody is served who has gone.
//
//	accept -> reading -> deciding (the pool reads the request) -> admitted: a loop's
//	                          |  \-> waiting (for its turn) --/
//	                          \--------\-> leaving: refused, our half shut
//
// An edge that ends TLS has two states in front of reading (door_tls.go).
type door struct {
	// immutable after newDoor
	edge     *Edge
	listener poller.Listener
	reserve  *poller.Reserve // nil where descriptors do not matter
	secure   *secure         // nil: plain sockets

	inbox inbox[*application] // the pool gives back what it read

	// owned by the door
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

func newDoor(e *Edge, ln poller.Listener, p poller.Poller, reserve *poller.Reserve) *door {
	most := e.cfg.RefusalsPerSecond
	d := &door{
		edge: e, listener: ln, reserve: reserve, poller: p,
		visitors: make(map[uint64]*visitor), buf: make([]byte, wsframe.MaxHandshakeBytes),
		explicit: rate.NewLimiter(rate.Limit(most), most), cheap: rate.NewLimiter(rate.Limit(most), most),
	}
	d.inbox.wake = p.Wake
	return d
}

// run turns until ctx ends.
func (d *door) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.poller.Wake)
	defer stop()
	defer d.shut()
	if err := d.poller.Add(d.listener, listenerToken); err != nil {
		return err
	}
	d.edge.gate.look()
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
		for _, a := range d.inbox.take() {
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
			d.edge.gate.look()
		}
	}
	return nil
}

func (d *door) timeout(now time.Time) time.Duration {
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

func (d *door) ready(ev poller.Event, now time.Time) {
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

func (d *door) accept(now time.Time) {
	if !d.paused.IsZero() {
		return
	}
	for range acceptBurst {
		if len(d.visitors) >= d.edge.cfg.MaxHandshakes && !d.mayReset(now) {
			return
		}
		sock, err := d.listener.Accept()
		switch {
		case errors.Is(err, poller.ErrAgain):
			return
		case errors.Is(err, poller.ErrDescriptors):
			d.acceptFromReserve()
			return
		case err != nil:
			d.edge.log.Warn("accept", "err", err)
			return
		}
		d.edge.metrics.accepted.Inc()
		if len(d.visitors) >= d.edge.cfg.MaxHandshakes {
			d.edge.metrics.refused(refusedDoor)
			sock.Reset()
			continue
		}
		v := &visitor{sock: sock, accepted: now, deadline: now.Add(d.edge.cfg.HandshakeTimeout)}
		if d.keep(v) && d.secure != nil {
			d.knock(v, now)
		}
	}
}

// acceptFromReserve takes one client out of the backlog and resets it, so that the
// listener does not stay ready for ever.
func (d *door) acceptFromReserve() {
	d.edge.metrics.refused(refusedDescriptors)
	if d.reserve == nil || !d.reserve.Release() {
		return
	}
	if sock, err := d.listener.Accept(); err == nil {
		sock.Reset()
	}
	_ = d.reserve.Refill() // tried again the next time
}

func (d *door) keep(v *visitor) bool {
	d.token++
	v.token = d.token
	if err := d.poller.Add(v.sock, v.token); err != nil {
		v.sock.Close()
		return false
	}
	d.visitors[v.token] = v
	d.edge.metrics.handshakes.Set(float64(len(d.visitors)))
	return true
}

// forget takes a visitor out; its socket stays open, and the poller has it.
func (d *door) forget(v *visitor) {
	switch v.stage {
	case stageLeaving:
		d.leaving--
	case stageShaking:
		v.shake.Abort()
	}
	delete(d.visitors, v.token)
	d.edge.metrics.handshakes.Set(float64(len(d.visitors)))
}

// end is forget and the end of the socket.
func (d *door) end(v *visitor) {
	d.forget(v)
	v.sock.Close()
}

// hungUp ends a visitor that has gone before its turn; it takes nothing from the
// rate.
func (d *door) hungUp(v *visitor) {
	switch v.stage {
	case stageWaiting:
		d.edge.gate.hungUp(v.token)
	case stageKnocking:
		d.secure.gate.Gone(v.token)
	}
	d.edge.metrics.hungUp.Inc()
	d.end(v)
}

func (d *door) read(v *visitor, now time.Time) {
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
		d.edge.metrics.refused(refusedRequest)
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
	if !d.edge.checks.submit(func() { d.inbox.post(d.edge.readRequest(token, head, rest)) }) {
		// The pool is full of tokens to check: more clients would wait for it in vain.
		// What it costs to tell them so is the door's.
		a := d.edge.readRequest(token, head, rest)
		a.turnAway = true
		d.apply(a, now)
	}
}

// apply goes on with a visitor whose request the pool has read.
func (d *door) apply(a *application, now time.Time) {
	v := d.visitors[a.token]
	if v == nil {
		return // gone meanwhile
	}
	if a.response != nil {
		if a.refused {
			d.edge.metrics.refused(refusedRequest)
		}
		d.say(v, a.response, now)
		return
	}
	d.busy = true
	a.arrival.ID = v.token
	v.wants = a
	if a.turnAway {
		d.decide(v, d.edge.gate.turnAway(a.arrival), now)
		return
	}
	d.decide(v, d.edge.gate.arrive(a.arrival), now)
}

// serve asks the gate for the turns of those who wait.
func (d *door) serve(now time.Time) {
	if d.due.IsZero() || now.Before(d.due) {
		return
	}
	again := time.Duration(0)
	d.decided, again = d.edge.gate.serve(d.decided[:0])
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

func (d *door) decide(v *visitor, decision admission.Decision, now time.Time) {
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
func (d *door) admit(v *visitor, decision admission.Decision, now time.Time) {
	e, a := d.edge, v.wants
	d.forget(v)
	response := wsframe.AppendAccept(make([]byte, 0, 256), a.request, a.protocol)
	if n, err := v.sock.Write(response); err != nil || n < len(response) || d.poller.Remove(v.sock) != nil {
		v.sock.Close()
		return
	}
	e.metrics.conns.Set(float64(e.conns.Add(1)))
	e.metrics.admit(decision)
	e.spend(decision)
	m := &adopted{sock: v.sock, rest: a.rest, ticket: a.ticket, admitted: now}
	if len(e.cfg.TrustedProxies) > 0 {
		m.client = proxies(e.cfg.TrustedProxies).client(v.sock.RemoteAddr().Addr(), a.request)
	}
	e.nextLoop().inbox.post(m)
}

func (d *door) sweep(now time.Time) {
	e := d.edge
	most := e.settings().RefusalsPerSecond
	for _, l := range []*rate.Limiter{d.explicit, d.cheap} {
		if l.Burst() != most {
			l.SetLimitAt(now, rate.Limit(most))
			l.SetBurstAt(now, most)
		}
	}
	d.due = now // the rates may have changed, or this edge begun to leave
	if d.busy {
		e.probeLoops(now)
	}
	d.busy = false
	e.gate.observe()
	for _, v := range d.visitors {
		if v.stage == stageWaiting || v.stage == stageKnocking || now.Before(v.deadline) {
			continue
		}
		if v.stage != stageLeaving {
			e.metrics.refused(refusedSlow)
		}
		d.end(v)
	}
	e.metrics.atDoor(e.gate.status(), e.gate.memoryRoom())
	if d.secure != nil {
		e.metrics.knocking.Set(float64(d.secure.gate.Waiting()))
	}
}

func (d *door) shut() {
	d.listener.Close()
	for _, v := range d.visitors {
		d.end(v)
	}
	d.poller.Close()
}
