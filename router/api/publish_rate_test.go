package api

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/router/namespace"
)

func TestRateGivesEachRefusedPublishATimeOfItsOwn(t *testing.T) {
	r := newRate("chat", &namespace.Namespace{PublishPerSecond: 10, PublishBurst: 2})
	now := time.Unix(1000, 0)
	var told []time.Duration
	for range 5 {
		after, _ := r.take(now)
		told = append(told, after)
	}
	if got := fmt.Sprint(told); got != "[0s 0s 100ms 200ms 300ms]" {
		t.Errorf("told %s", got)
	}
	if _, ok := r.take(now.Add(100 * time.Millisecond)); !ok {
		t.Error("who came back as told was refused")
	}
	if _, ok := r.take(now.Add(-time.Hour)); ok {
		t.Error("a clock that went back gave an event")
	}
	for range 1000 {
		if after, _ := r.take(now.Add(-time.Hour)); after <= 0 || after > rateHorizon {
			t.Fatalf("told %v", after)
		}
	}
	if newRate("chat", &namespace.Namespace{}) != nil {
		t.Error("no rate is a limit")
	}
}

// Over any span, no more than the burst and the rate times the span.
func TestRateHoldsOverEverySpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "rate"), rapid.IntRange(1, 50).Draw(t, "burst")
		r := newRate("chat", &namespace.Namespace{PublishPerSecond: perSecond, PublishBurst: burst})
		now, taken := time.Unix(1000, 0), []time.Time{}
		for range rapid.IntRange(1, 300).Draw(t, "publishes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "us")) * time.Microsecond)
			if _, ok := r.take(now); ok {
				taken = append(taken, now)
			}
		}
		for i, from := range taken {
			for j := i; j < len(taken); j++ {
				if most := float64(burst) + float64(perSecond)*taken[j].Sub(from).Seconds() + 1e-6; float64(j-i+1) > most {
					t.Fatalf("%d events in %v", j-i+1, taken[j].Sub(from))
				}
			}
		}
	})
}
