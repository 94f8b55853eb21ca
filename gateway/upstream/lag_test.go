package upstream

import (
	"testing"
	"time"
)

func TestTheWorstRouterCountsForTwoSeconds(t *testing.T) {
	var l lag
	now := time.Unix(1000, 0)
	l.told("a", 300*time.Millisecond, now)
	l.told("b", 1200*time.Millisecond, now)
	if got := l.worst(now); got != 1200*time.Millisecond {
		t.Errorf("worst %v", got)
	}
	l.told("b", 0, now.Add(time.Second))
	if got := l.worst(now.Add(time.Second)); got != 300*time.Millisecond {
		t.Errorf("after b has caught up: %v", got)
	}
	if got := l.worst(now.Add(lagMemory)); got != 0 || len(l.routers) != 0 {
		t.Errorf("after the silence of a: %v", got)
	}
}
