package loadgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// Policy is what clients do after a loss; it travels as JSON. Those of kind sdk are the
// SDK's machine as it is. The others are clients of another make.
type Policy struct {
	Kind        string        `json:"kind"`         // "" stays away, "sdk", "fixed", "exponential"
	Interval    time.Duration `json:"interval"`     // fixed: the pause; exponential: the first one
	Cap         time.Duration `json:"cap"`          // exponential: the longest pause
	AttemptTime time.Duration `json:"attempt_time"` // fixed, exponential: from the connect to `connected`
}

// Policies are the names that NamedPolicy knows.
const Policies = "sdk, fixed-1s, fixed-5s, exponential"

// NamedPolicy is a policy by the name that operators give it.
func NamedPolicy(name string) (Policy, error) {
	switch name {
	case "sdk":
		return Policy{Kind: "sdk"}, nil
	case "fixed-1s":
		return Policy{Kind: "fixed", Interval: time.Second, AttemptTime: 5 * time.Second}, nil
	case "fixed-5s":
		return Policy{Kind: "fixed", Interval: 5 * time.Second, AttemptTime: 5 * time.Second}, nil
	case "exponential":
		return Policy{Kind: "exponential", Interval: 500 * time.Millisecond, Cap: 30 * time.Second, AttemptTime: 15 * time.Second}, nil
	}
	return Policy{}, fmt.Errorf("%q: must be one of %s", name, Policies)
}

// foreign is the policy as the machine takes it; nil: what the SDK does.
func (p Policy) foreign() (*machine.Foreign, error) {
	switch {
	case p.Kind == "" || p.Kind == "sdk":
		return nil, nil
	case p.Interval <= 0 || p.AttemptTime <= 0:
		return nil, errors.New("needs an interval and a time for attempts")
	case p.Kind == "fixed":
		return &machine.Foreign{AttemptTime: p.AttemptTime, Pause: func(int) time.Duration { return p.Interval }}, nil
	case p.Kind == "exponential":
		return &machine.Foreign{AttemptTime: p.AttemptTime, Pause: func(failures int) time.Duration {
			return min(p.Cap, p.Interval<<min(failures, 20))
		}}, nil
	}
	return nil, errors.New("must be sdk, fixed or exponential")
}

func jitter(most time.Duration, r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(int64(max(most, 1))))
}
