package presence

import (
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// However large the cluster, a node hears about a hundred edges a second, and a
// router's silence shows in three seconds.
func TestFiguresSlowDownInLargeClusters(t *testing.T) {
	for _, c := range []struct {
		role gatewayv1.Role
		n    int
		want time.Duration
	}{
		{gatewayv1.Role_ROLE_EDGE, 1, time.Second},
		{gatewayv1.Role_ROLE_EDGE, 100, time.Second},
		{gatewayv1.Role_ROLE_EDGE, 150, 1500 * time.Millisecond},
		{gatewayv1.Role_ROLE_EDGE, 1_000, 10 * time.Second},
		{gatewayv1.Role_ROLE_ROUTER, 1_000, time.Second},
	} {
		if got := figureInterval(time.Second, c.role, c.n); got != c.want {
			t.Errorf("%v of %d: %v, want %v", c.role, c.n, got, c.want)
		}
	}
}

// In a large cluster an edge is silent after three of its own, longer, intervals.
func TestSilenceFollowsTheInterval(t *testing.T) {
	s := newScenario()
	s.do(t, []string{"bus", "up"})
	words := []string{"list"}
	for i := range 250 {
		words = append(words, "e"+time.Duration(i).String())
	}
	s.do(t, append(words, "r1"))
	for _, id := range []string{"r1", "e1ns"} {
		s.do(t, []string{"delete", id})
	}
	s.runTo(s.start.Add(4 * time.Second))
	if _, there := s.entries[Key{gatewayv1.Role_ROLE_ROUTER, "r1"}]; there {
		t.Error("a router silent for four seconds is in the view")
	}
	edge := Key{gatewayv1.Role_ROLE_EDGE, "e1ns"}
	if _, there := s.entries[edge]; !there {
		t.Error("an edge that speaks every 2.5 s is gone after four")
	}
	s.runTo(s.start.Add(9 * time.Second))
	if _, there := s.entries[edge]; there {
		t.Error("an edge silent for nine seconds is in the view")
	}
}
