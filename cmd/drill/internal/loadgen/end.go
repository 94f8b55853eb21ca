package loadgen

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stableAfter is how long a connection has to last before its client's count of
// failures begins anew.
const stableAfter = 5 * time.Second

// end closes a socket, counts why, and says when its client comes back.
func (l *loop) end(k *conn, cause Cause) {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
	}
	l.timers.clear(&k.timer)
	c, was := k.client, k.state
	switch {
	case was == leaving:
		cause = CauseMoved
	case was != up && k.refused != "" && cause != CauseLocal:
		cause = CauseRefused // however the stream ended after it
	}
	l.causes[cause]++
	if k.code != 0 && was != leaving {
		l.codes[k.code]++
	}
	k.fd, k.state, k.rest, k.out, k.pinged = -1, away, nil, nil, 0
	c.next = k.told
	switch was {
	case up:
		l.ended(k)
	case leaving:
		if k.other().welcomed() {
			l.adopt(k)
		}
		return
	default:
		l.failed(k, cause)
	}
	if c.cur == nil && !k.other().opening() {
		l.schedule(k, was, cause)
	}
}

// ended is a connection that was welcomed.
func (l *loop) ended(k *conn) {
	c := k.client
	if o := k.other(); o.state == up {
		l.adopt(k)
		if c.cur = o; !o.taken() {
			l.counts.Cut++
		}
		return
	}
	c.cur, c.moving.open = nil, false
	c.outage, c.first = l.now, true
	l.up--
	l.counts.Interrupted++
	l.ends = count(l.ends, time.Duration(l.now))
	if l.now-k.upSince >= int64(stableAfter) {
		c.failures = 0
	} else {
		c.failures++
	}
}

// failed is an attempt that came to nothing.
func (l *loop) failed(k *conn, cause Cause) {
	c := k.client
	if k.first {
		l.ramping--
	}
	refused := cause == CauseRefused
	if refused {
		l.counts.Refused++
		l.refused[k.refused]++
		l.refusals = count(l.refusals, time.Duration(l.now))
	} else {
		l.counts.Failed++
	}
	if c.first && c.cur == nil {
		c.first = false
		if refused {
			l.counts.FirstRefused++
		}
	}
	if c.cur == nil {
		c.failures++
		return
	}
	if !k.move {
		return
	}
	if refused {
		l.counts.MovesRefused++
	} else {
		l.counts.MovesFailed++
	}
	l.moveAgain(c, k.told.wait)
}

// schedule asks the policy when a client without any socket comes back.
func (l *loop) schedule(k *conn, was connState, cause Cause) {
	c := k.client
	if l.away {
		return // until bringBack
	}
	if l.policy == nil {
		l.leave(c)
		return
	}
	e := End{
		Cause: cause, Code: k.code, Failures: c.failures, Wait: k.told.wait, Header: k.told.header,
		Hinted: k.hinted, RetryWindow: c.window,
	}
	if was == up {
		e.Up = time.Duration(l.now - k.upSince)
	}
	wait, again := l.policy.Next(e, l.rand)
	if !again {
		l.leave(c)
		return
	}
	if l.obeys && k.code == 4006 { // superseded by someone else: not its session any more
		c.ticket = ""
	}
	l.timers.set(&c.timer, l.now+int64(wait))
}

// leave is a client that stays away for good.
func (l *loop) leave(c *client) {
	if !c.gone {
		c.gone = true
		l.gone++
	}
}

// codeNames has the codes as JSON keys.
func (l *loop) codeNames() map[string]uint64 {
	m := make(map[string]uint64, len(l.codes))
	for code, n := range l.codes {
		m[strconv.Itoa(int(code))] = n
	}
	return m
}
