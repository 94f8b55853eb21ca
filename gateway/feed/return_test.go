package feed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// perSecond counts questions by the second after a moment.
func (c *cluster) perSecond(from time.Time, seconds int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]int, seconds)
	for _, at := range c.askedAt {
		if s := int(at.Sub(from) / time.Second); !at.Before(from) && s < seconds {
			all[s]++
		}
	}
	return all
}

// Routers, or the store behind them, are away for long while ten thousand channels
// wait, and come back with a new view, which makes everybody ask soon. Away and at the
// return the questions are paced, and everybody is served.
func TestTheReturnOfRoutersIsNoStorm(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		const channels = 10_000
		b.c.set(func() { b.c.status, b.c.retryMS = gatewayv1.Status_STATUS_UNAVAILABLE, 700 })
		for i := range channels {
			b.join(i%2, uint64(i), fmt.Sprint("c", i), nil)
		}
		b.wait(15 * time.Second)
		away := b.c.perSecond(time.Now().Add(-10*time.Second), 10)
		b.sinks[0].take()
		b.sinks[1].take()
		b.c.set(func() { b.c.status = gatewayv1.Status_STATUS_OK })
		b.c.routers("r1", "r2")
		back := time.Now()
		b.wait(12 * time.Second)
		asked := b.c.perSecond(back, 12)
		t.Logf("questions a second while away %v, from the return on %v", away, asked)
		// 2,000 repetitions and 2,000 heads, and what was saved up of both
		if most := slices.Max(append(away, asked...)); most > 4_500 {
			t.Errorf("%d questions in a second", most)
		}
		served := len(b.sinks[0].take()) + len(b.sinks[1].take())
		if served != channels {
			t.Errorf("%d of %d pulls were answered in 12 s", served, channels)
		}
	})
}

// A router that says when to come back is asked no sooner, whatever it was asked.
func TestQuestionsAreRepeatedWhenTheRouterSays(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "known", nil)
		b.wait(2 * time.Second)
		b.c.set(func() {
			b.c.status, b.c.retryMS, b.c.asked, b.c.askedAt = gatewayv1.Status_STATUS_UNAVAILABLE, 4_000, nil, nil
		})
		b.join(0, 2, "new", nil)             // a pull
		b.c.set(func() { b.c.reconnects++ }) // a check of the head
		b.c.publish("known", 1, true)
		b.c.publish("known", 1, false) // a repair
		b.wait(20 * time.Second)
		last := make(map[string]time.Time)
		b.c.set(func() {
			for i, a := range b.c.asked {
				kind := fmt.Sprint(a.Channel, headAsk(a), repairAsk(a))
				if before, ok := last[kind]; ok && b.c.askedAt[i].Sub(before) < 4*time.Second {
					t.Errorf("%s was asked again after %v", kind, b.c.askedAt[i].Sub(before))
				}
				last[kind] = b.c.askedAt[i]
			}
		})
		if len(last) != 3 {
			t.Errorf("asked: %v", last)
		}
	})
}

// Checks that nobody answers become rare, so that routers can get to their feet, and
// are at their pace again soon after the first answer.
func TestChecksThatNobodyAnswersBecomeRare(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		for i := range 2_000 {
			b.join(0, uint64(i), fmt.Sprint("c", i), nil)
		}
		b.wait(5 * time.Second)
		b.c.set(func() { b.c.status = gatewayv1.Status_STATUS_UNAVAILABLE; b.c.reconnects++ })
		b.wait(10 * time.Second)
		if away := b.c.perSecond(time.Now().Add(-3*time.Second), 3); slices.Max(away) > 150 {
			t.Errorf("checks a second while nobody answers: %v", away)
		}
		b.c.set(func() { b.c.status = gatewayv1.Status_STATUS_OK; b.c.reconnects++ })
		back := time.Now()
		b.wait(5 * time.Second)
		sum := 0
		for _, n := range b.c.perSecond(back, 5) {
			sum += n
		}
		if sum < 2_000 {
			t.Errorf("%d checks of 2,000 channels in 5 s from the return on", sum)
		}
	})
}
