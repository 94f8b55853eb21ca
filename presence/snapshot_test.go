package presence

import (
	"fmt"
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func routers(n int) []*Member {
	var members []*Member
	for i := range n {
		members = append(members, &Member{Id: fmt.Sprint("r", i), Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING})
	}
	return members
}

func TestARouterThatLeavesMovesOnlyItsChannels(t *testing.T) {
	all := routers(5)
	before, after := NewSnapshot(all, 1), NewSnapshot(all[1:], 2)
	owned := make(map[string]int)
	for i := range 10_000 {
		channel := fmt.Sprint("chat:room-", i)
		was, ranked := before.Owner(channel), before.Ranked(channel)
		if ranked[0] != was || len(ranked) != 5 {
			t.Fatalf("%s: the owner is not the first of all", channel)
		}
		owned[was.Id]++
		if was.Id != "r0" && after.Owner(channel) != was {
			t.Fatalf("%s moved from %s", channel, was.Id)
		}
		if was.Id == "r0" && after.Owner(channel) != ranked[1] {
			t.Fatalf("%s did not go to its next", channel)
		}
	}
	for id, n := range owned {
		if n < 1_800 || n > 2_200 {
			t.Errorf("%s owns %d of 10,000, want about 2,000", id, n)
		}
	}
}

// Every process must come to the same owner, in this version and the next.
func TestOwnersAreTheSameInEveryProcess(t *testing.T) {
	s := NewSnapshot(routers(5), 1)
	for channel, want := range map[string]string{"": "r0", "news": "r4", "chat:room-1": "r0", "user:a@b.c": "r4", "日本": "r0"} {
		if got := s.Owner(channel).Id; got != want {
			t.Errorf("%q is owned by %s, was by %s", channel, got, want)
		}
	}
}

func TestOnlyServingRoutersOwn(t *testing.T) {
	members := routers(3)
	members[1].State = gatewayv1.State_STATE_DRAINING
	members[2].State = gatewayv1.State_STATE_JOINING
	members = append(members, &Member{Id: "r9", Role: gatewayv1.Role_ROLE_EDGE, State: gatewayv1.State_STATE_SERVING})
	s := NewSnapshot(members, 1)
	for i := range 100 {
		if owner := s.Owner(fmt.Sprint(i)); owner != members[0] {
			t.Fatalf("owned by %s", owner.Id)
		}
	}
	if len(s.Members()) != 4 || len(s.Edges()) != 1 || s.Member(KeyOf(members[1])) != members[1] || s.Member(Key{ID: "r1"}) != nil {
		t.Error("members are not all there")
	}
	if NewSnapshot(nil, 0).Owner("a") != nil {
		t.Error("an owner without routers")
	}
}

func TestOwnerDoesNotAllocate(t *testing.T) {
	s := NewSnapshot(routers(5), 1)
	if n := testing.AllocsPerRun(100, func() { s.Owner("chat:room-77") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{1, 2, 5, 20} {
		s := NewSnapshot(routers(n), 1)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Owner("chat:room-77")
			}
		})
	}
}
