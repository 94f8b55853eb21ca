package loadgen

import (
	"fmt"
	"math/rand/v2"
	"time"
)

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
	causes
)

var causeNames = [causes]string{"closed", "eof", "reset", "refused", "timeout", "ping_timeout", "broken", "local"}

func (c Cause) String() string { return causeNames[min(c, causes-1)] }

// End is an attempt or connection that ended.
type End struct {
	Cause       Cause
	Code        uint16        // of the close frame; 0: none
	Up          time.Duration // how long it was connected; 0: it never was
	Failures    int           // attempts failed in a row, this one included; 0: it was connected
	Wait        time.Duration // told by the server (busy, Retry-After); 0: none
	RetryWindow time.Duration // told by `connected`
}

// Policy says when a client comes back. It is called on the generator's thread and
// keeps nothing of one client. again=false: never.
type Policy interface {
	Next(e End, r *rand.Rand) (wait time.Duration, again bool)
}

// PolicySpec names a Policy; it travels as JSON.
type PolicySpec struct {
	Kind     string        `json:"kind"`     // "" stay away, "sdk", "fixed", "exponential"
	Interval time.Duration `json:"interval"` // fixed
	Base     time.Duration `json:"base"`     // sdk, exponential; default 500 ms
	Cap      time.Duration `json:"cap"`      // default 30 s
}

// New makes the policy; nil if clients stay away.
func (s PolicySpec) New() (Policy, error) {
	base, most := s.Base, s.Cap
	if base == 0 {
		base = 500 * time.Millisecond
	}
	if most == 0 {
		most = 30 * time.Second
	}
	switch {
	case s.Kind == "":
		return nil, nil
	case s.Kind == "sdk":
		return sdkPolicy{base, most}, nil
	case s.Kind == "fixed" && s.Interval > 0:
		return fixedPolicy{s.Interval}, nil
	case s.Kind == "exponential":
		return exponentialPolicy{base, most}, nil
	}
	return nil, fmt.Errorf("must be sdk, fixed with an interval, or exponential")
}

// sdkPolicy is what every SDK of ours does: full jitter, the server's wait first.
type sdkPolicy struct{ base, cap time.Duration }

func (p sdkPolicy) Next(e End, r *rand.Rand) (time.Duration, bool) {
	switch {
	case e.Code >= 4200 && e.Code <= 4299:
		return 0, false
	case e.Wait > 0:
		return min(e.Wait, 10*time.Minute), true
	case e.Failures == 0 && e.RetryWindow > 0 && e.Cause != CausePing:
		return jitter(e.RetryWindow, r), true
	}
	return jitter(grown(p.base, p.cap, e.Failures), r), true
}

// fixedPolicy is an old client: the same wait for ever, whatever it is told.
type fixedPolicy struct{ interval time.Duration }

func (p fixedPolicy) Next(End, *rand.Rand) (time.Duration, bool) { return p.interval, true }

// exponentialPolicy doubles without jitter.
type exponentialPolicy struct{ base, cap time.Duration }

func (p exponentialPolicy) Next(e End, _ *rand.Rand) (time.Duration, bool) {
	return grown(p.base, p.cap, e.Failures), true
}

func grown(base, most time.Duration, failures int) time.Duration {
	return min(most, base<<min(failures, 20))
}

func jitter(most time.Duration, r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(int64(max(most, 1))))
}
