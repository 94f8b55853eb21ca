package loadgen

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/client/machine"
	"github.com/spillway-io/spillway/proto/wire"
)

// connState:
//
//	dialing --writable--> upgrading --101--> open --the machine drops it--> leaving
//	   |                      |                |                               |
//	   +----------------------+----------------+-------------------------------+--> closed
type connState uint8

const (
	dialing   connState = iota // connect(2) is under way
	upgrading                  // the request was sent
	open                       // the machine was told
	leaving                    // the machine has dropped it: a close frame was sent
)

// conn is one socket of a client; owned by the loop. It is used again for another.
type conn struct {
	client *client
	next   *conn // of the client
	index  int32 // in loop.conns
	use    int32 // how often it was used: an event of epoll for an earlier use is void
	fd     int   // -1: closed
	link   int
	state  connState

	// of the attempt
	first   bool // counts in loop.ramping
	move    bool // another connection serves meanwhile
	target  target
	aimed   bool   // at target: a server named it
	left    int    // addresses not tried yet
	address int    // the next of them
	ticket  string // to offer at the door
	pass    bool   // it is one for a slot
	began   int64
	refused string // "busy" or an HTTP status: this attempt is a refusal

	welcomed bool   // `connected` was read
	code     uint16 // of the close frame
	leaveBy  int64  // as leaving: closed at the latest

	rest []byte // read, and not yet whole; nil: nothing
	out  []byte // to be written when the socket takes it
	subs []stream
}

// Cause is how an attempt or a connection ended.
type Cause uint8

// Causes.
const (
	CauseClosed  Cause = iota // a close frame came
	CauseEOF                  // the stream ended without one
	CauseReset                // the socket failed
	CauseRefused              // `busy`, or an HTTP answer that is not 101
	CauseTimeout              // not connected in time
	CausePing                 // no frame in time after a ping
	CauseBroken               // what came is not the protocol
	CauseLocal                // no socket, no port
	CauseMoved                // the client closed it: another one has taken over
	CauseAway                 // it was taken away: the client is to stay away
	causes
)

var causeNames = [causes]string{"closed", "eof", "reset", "refused", "timeout", "ping_timeout", "broken", "local", "moved", "away"}

// causeErrors are made once: thousands end at a time.
var causeErrors = func() (errs [causes]error) {
	for c, name := range causeNames {
		errs[c] = errors.New(name)
	}
	return errs
}()

func (c Cause) String() string { return causeNames[min(c, causes-1)] }

// leaveTime is how long the server's half of a close is waited for, as the SDK does.
const leaveTime = time.Second

// newConn makes a conn, or uses one again.
func (l *loop) newConn(c *client) *conn {
	var k *conn
	if n := len(l.free); n > 0 {
		k, l.free = l.free[n-1], l.free[:n-1]
	} else {
		k = &conn{index: int32(len(l.conns))}
		l.conns = append(l.conns, k)
	}
	*k = conn{client: c, next: c.conns, index: k.index, use: k.use, fd: -1, subs: k.subs[:0]}
	c.conns = k
	return k
}

// closeConn closes the socket of a conn and forgets it.
func (l *loop) closeConn(k *conn) {
	k.use++ // what is still said of this use is void
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
		k.fd = -1
	}
	for at := &k.client.conns; *at != nil; at = &(*at).next {
		if *at == k {
			*at = k.next
			l.free = append(l.free, k)
			break
		}
	}
	k.rest, k.out = nil, nil
}

// connLost is a conn that has ended, by anybody but the machine, which hears of it.
func (l *loop) connLost(k *conn, cause Cause) {
	c := k.client
	if k.state == leaving {
		l.closeConn(k)
		return
	}
	opened := k.state == open
	var refusal machine.Refusal
	if !opened {
		refusal = k.refusal()
		refusal.Err = causeErrors[cause]
	}
	code, link := k.code, k.link
	l.ended(k, cause)
	l.closeConn(k)
	if opened {
		c.machine.Lost(l.time(), link, wire.CloseCode(code), causeErrors[cause])
	} else {
		c.machine.Refused(l.time(), link, refusal)
	}
	l.step(c)
}

// drop is what the machine closes: in order, if it is open.
func (l *loop) drop(k *conn, code wire.CloseCode) {
	switch {
	case code == wire.ClosePingTimeout:
		l.ended(k, CausePing)
	case k.welcomed:
		l.ended(k, CauseMoved)
	default:
		l.ended(k, CauseTimeout)
	}
	if k.state != open || code == wire.ClosePingTimeout {
		l.closeConn(k)
		return
	}
	k.state, k.leaveBy = leaving, l.now+int64(leaveTime)
	l.leaving = append(l.leaving, leave{k, k.use})
	l.sendClose(k, code)
}

// leave is a conn that is leaving, if it is still in that use.
type leave struct {
	conn *conn
	use  int32
}

// failure is a conn whose socket failed while an action was carried out.
type failure struct {
	leave
	cause Cause
}

// failSoon has a conn lost as soon as all actions of now are carried out: the machine hears of
// one thing after the other.
func (l *loop) failSoon(k *conn, cause Cause) {
	l.failures = append(l.failures, failure{leave{k, k.use}, cause})
}

func (l *loop) reportFailed() {
	for len(l.failures) > 0 {
		list := l.failures
		l.failures = nil
		for _, f := range list {
			if f.conn.use == f.use {
				l.connLost(f.conn, f.cause)
			}
		}
	}
}

// dueLeavers closes those whose server does not answer. They stand in the order of their
// times.
func (l *loop) dueLeavers() {
	for len(l.leaving) > 0 {
		first := l.leaving[0]
		if k := first.conn; k.use == first.use {
			if k.leaveBy > l.now {
				return
			}
			l.closeConn(k)
		}
		l.leaving = l.leaving[1:]
	}
	l.leaving = nil
}

// ended counts how a conn ended that the machine knows of.
func (l *loop) ended(k *conn, cause Cause) {
	if !k.welcomed && k.refused != "" && cause != CauseLocal {
		cause = CauseRefused // however the stream ended after it
	}
	l.causes[cause]++
	if k.code != 0 {
		l.codes[k.code]++
	}
	if k.welcomed {
		return
	}
	c, refused := k.client, cause == CauseRefused
	if k.first {
		l.ramping--
	}
	connected := c.machine.State() == machine.Connected
	if refused {
		l.counts.Refused++
		l.refused[k.refused]++
		l.refusals = count(l.refusals, time.Duration(l.now))
	} else {
		l.counts.Failed++
	}
	switch {
	case !connected && c.first:
		c.first = false
		if refused {
			l.counts.FirstRefused++
		}
	case connected && k.move && refused:
		l.counts.MovesRefused++
	case connected && k.move:
		l.counts.MovesFailed++
	}
}
