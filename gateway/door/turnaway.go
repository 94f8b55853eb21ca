package door

import (
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// The ways in which the door turns people away, the dearest first: an answer that says
// when to come back (21 us), a reset (14), and accepting nobody for a moment (0.4).
// Each has a budget; what is past it falls to the next.

// refuse says when to come back, as long as the budget for that lasts.
func (d *Door) refuse(v *visitor, decision admission.Decision, now time.Time) {
	if !d.explicit.AllowN(now, 1) {
		d.refuseCheaply(v, now)
		return
	}
	d.metrics.refused(decision.Cause.String())
	d.say(v, d.desk.busy(v.wants, decision), now)
	d.spend(decision)
}

func (d *Door) refuseCheaply(v *visitor, now time.Time) {
	d.metrics.refused(refusedReset)
	d.mayReset(now)
	d.forget(v)
	v.sock.Reset()
}

// say writes a last word to a visitor, shuts our half, and waits a moment for it to
// go: closing at once, with input unread, would turn the answer into a reset.
func (d *Door) say(v *visitor, response []byte, now time.Time) {
	n, err := v.sock.Write(response)
	if err != nil || n < len(response) || v.sock.CloseWrite() != nil || d.leaving >= max(d.cfg.MaxHandshakes/4, 1) ||
		d.poller.SetRead(v.sock, true) != nil {
		d.end(v)
		return
	}
	v.head, v.wants, v.stage = nil, nil, stageLeaving
	v.deadline = now.Add(lingerTime)
	d.leaving++
}

// mayReset counts a reset against the budget; past it nobody is accepted for a
// moment: who waits in the backlog costs nothing.
func (d *Door) mayReset(now time.Time) bool {
	if d.cheap.AllowN(now, 1) {
		return true
	}
	if d.paused.IsZero() && d.poller.Remove(d.deps.Listener) == nil {
		d.paused = now.Add(acceptPause)
		d.metrics.acceptPauses.Inc()
	}
	return false
}

// resume accepts again after a pause.
func (d *Door) resume(now time.Time) {
	if d.paused.IsZero() || now.Before(d.paused) {
		return
	}
	d.paused = time.Time{}
	if err := d.poller.Add(d.deps.Listener, listenerToken); err != nil {
		d.cfg.Log.Error("accept again", "err", err)
		d.paused = now.Add(acceptPause)
	}
}
