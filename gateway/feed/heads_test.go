package feed

import (
	"testing"
	"time"
)

// Checks without an answer are repeated in the order in which they failed. A router
// that wants to be left alone for long must not keep another's channels unchecked.
func TestOneRouterPutsOffNoOthersChecks(t *testing.T) {
	cfg := Default()
	h := newHeads(&cfg, 1)
	now := time.Now()
	patient, other := new(feed), new(feed)
	h.again(patient, now, time.Minute)
	h.again(other, now, 0)
	h.suspectDue(now.Add(15*time.Second), 0)
	if !other.doubtful {
		t.Error("not looked at after 15 s, since another router asked for a minute")
	}
}
