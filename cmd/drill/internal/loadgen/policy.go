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
	CauseMoved                // the client closed it: another one has taken over
	CauseAway                 // the client closed it: it was told to stay away
	causes
)

var causeNames = [causes]string{"closed", "eof", "reset", "refused", "timeout", "ping_timeout", "broken", "local", "moved", "away"}

func (c Cause) String() string { return causeNames[min(c, causes-1)] }

// End is an attempt or connection that ended.
type End struct {
	Cause       Cause
	Code        uint16        // of the close frame; 0: none
	Up          time.Duration // how long it was connected; 0: it never was
	Failures    int           // attempts failed in a row and connections that did not last 5 s, this one included
	Wait        time.Duration // told by the server (busy, Retry-After); 0: none
	Header      bool          // Wait is a Retry-After
	Hinted      bool          // `reconnect` was heard on it
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

// Policies are the names that NamedPolicy knows.
const Policies = "sdk, fixed-1s, fixed-5s, exponential"

// NamedPolicy is a policy by the name that operators give it, and how long an attempt
// of such clients may last.
func NamedPolicy(name string) (PolicySpec, time.Duration, error) {
	switch name {
	case "sdk":
		return PolicySpec{Kind: "sdk"}, 15 * time.Second, nil
	case "fixed-1s":
		return PolicySpec{Kind: "fixed", Interval: time.Second}, 5 * time.Second, nil
	case "fixed-5s":
		return PolicySpec{Kind: "fixed", Interval: 5 * time.Second}, 5 * time.Second, nil
	case "exponential":
		return PolicySpec{Kind: "exponential"}, 15 * time.Second, nil
	}
	return PolicySpec{}, 0, fmt.Errorf("%q: must be one of %s", name, Policies)
}

// obeys says that the clients know tickets, attempts, hints and passes.
func (s PolicySpec) obeys() bool { return s.Kind == "sdk" }

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

// sdkPolicy is what every SDK of ours does: full jitter, the server's wait first, the
// first return spread over the window that the edge told.
type sdkPolicy struct{ base, cap time.Duration }

func (p sdkPolicy) Next(e End, r *rand.Rand) (time.Duration, bool) {
	switch {
	case e.Code >= 4200 && e.Code <= 4299:
		return 0, false
	case e.Wait > 0 && e.Header:
		return e.Wait + jitter(max(e.Wait, time.Second), r), true
	case e.Wait > 0:
		return min(e.Wait, 10*time.Minute), true
	case e.Failures == 0 && e.RetryWindow > 0 && !e.Hinted && !e.own():
		return jitter(min(max(e.RetryWindow, p.base), 10*time.Second), r), true
	}
	return jitter(grown(p.base, p.cap, e.Failures), r), true
}

// own says that the end was the client's own doing: others do not come with it.
func (e End) own() bool {
	switch e.Code {
	case 4004, 4005, 4006, 4100:
		return true
	}
	return e.Cause == CausePing
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
