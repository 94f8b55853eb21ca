package router

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// fillLarge puts 3 MiB on a channel, which no message holds.
func (c *crew) fillLarge(through, channel string) *routerv1.Placed {
	c.t.Helper()
	var last *routerv1.Placed
	for range 12 {
		last = c.nodes[through].publish1(channel, `"`+strings.Repeat("x", 256<<10-2)+`"`, "")
	}
	return last
}

// tailOf is what a router has of a channel in memory.
func (n *node) tailOf(channel string) (events, head uint64) {
	state := n.state(channel)
	if state.TailFirst == 0 {
		return 0, state.Offset
	}
	return state.Offset + 1 - state.TailFirst, state.Offset
}

// Tails over the bound of a message go in parts, and arrive whole.
func TestLargeTailsAreHandedWhole(t *testing.T) {
	c := newCrew(t, "r1", "r2")
	var names []string
	for _, namespace := range []string{"brief", "chat"} {
		for _, name := range crewChannels(namespace, 20) {
			if c.nodes["r1"].views.Owned(name) {
				names = append(names, name)
				break
			}
		}
	}
	last := make(map[string]*routerv1.Placed)
	for _, name := range names {
		last[name] = c.fillLarge("r1", name)
	}
	c.leave("r1", "r2")
	for _, name := range names {
		if events, head := c.nodes["r2"].tailOf(name); events != 12 || head != 12 {
			t.Errorf("%s: %d events up to %d", name, events, head)
		}
	}
	wantNext(t, "after the leave", last, c.publishAll("r2", names, ""))
}

// Who has half of a large channel and takes no more has nothing: all of it is still at
// the giver.
func TestHalfOfAChannelIsNobodys(t *testing.T) {
	c := newCrewWith(t, func(cfg *Config) { cfg.HandoverGrace = time.Minute }, "r1")
	var pieces, lives atomic.Int64
	c.invite("r2", &stranger{hand: func(stream handStream) error {
		life := uint64(lives.Add(1))
		for {
			request, err := stream.Recv()
			if err != nil {
				return nil
			}
			answer := &gatewayv1.HandResponse{Seq: request.Seq, Life: life}
			if request.Seq > 0 {
				if pieces.Add(1) == 1 {
					return status.Error(codes.Unavailable, "the router is leaving") // another life of it begins, with nothing
				}
				answer.Refused = life > 1
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}})
	theirs := c.ownedBy("r2", crewChannels("brief", 20))
	last := c.fillLarge("r1", theirs[0])
	n := c.nodes["r1"]
	c.show("r1")
	eventually(t, "it was tried again", func() bool { return pieces.Load() > 1 })
	var res *gatewayv1.SubmitResult
	eventually(t, "it is served", func() bool {
		var err error
		res, err = n.submit(testContext(t), theirs[0], "")
		return err == nil && res.Code == 0
	})
	if res.Offset != last.Offset+1 {
		t.Errorf("%v after %v", res, last)
	}
}

// What is left when the time of a stop is over goes the ordinary way: stored channels go
// on, the others begin an epoch above theirs.
func TestWhatIsLeftAtTheDeadlineGoesTheOrdinaryWay(t *testing.T) {
	var answered atomic.Bool
	c := newCrewWith(t, func(cfg *Config) {
		cfg.HandoverTimeout = 700 * time.Millisecond
		if cfg.ID == "r2" {
			cfg.API.Options = append(cfg.API.Options, grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				return next(srv, &distort{s, func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
					if r.Seq > 0 && !answered.CompareAndSwap(false, true) {
						pause(s.Context(), time.Minute) // it takes, and does not say so
					}
					return s.SendMsg(r)
				}})
			}))
		}
	}, "r1", "r2")
	var names []string
	for _, namespace := range []string{"brief", "chat"} {
		names = append(names, crewChannels(namespace, 3000)...)
	}
	publish := func(through string) map[string]*routerv1.Placed {
		all := make(map[string]*routerv1.Placed)
		for from := 0; from < len(names); from += 1000 {
			for name, p := range c.publishAll(through, names[from:from+1000], "") {
				all[name] = p
			}
		}
		return all
	}
	first := publish("r1")
	n := c.nodes["r1"]
	c.set("r1", gatewayv1.State_STATE_DRAINING)
	c.show("r1", "r2")
	n.stop()
	<-n.ended
	delete(c.states, "r1")
	c.show("r2")
	fresh := 0
	for name, p := range publish("r2") {
		b := first[name]
		stored := strings.HasPrefix(name, "chat")
		switch {
		case p.Epoch == b.Epoch && p.Offset == b.Offset+1:
		case !stored && epochOf(t, p) > epochOf(t, b) && p.Offset == 1:
			fresh++
		default:
			t.Errorf("%s: %v after %v", name, p, b)
		}
	}
	if fresh == 0 {
		t.Error("no channel of memory was left")
	}
}

func epochOf(t *testing.T, p *routerv1.Placed) uint64 {
	t.Helper()
	epoch, ok := wire.ParseEpoch(p.Epoch)
	if !ok {
		t.Fatalf("epoch %q", p.Epoch)
	}
	return epoch
}

// handed is a channel without a store that a router gives away: n events of 2 KB.
func handed(epoch uint64, n int) *gatewayv1.HandedChannel {
	c := &gatewayv1.HandedChannel{Channel: "brief:a", Epoch: epoch, Head: uint64(n), Moves: 1}
	for i := range n {
		c.Events = append(c.Events, &gatewayv1.BusEvent{Offset: uint64(i + 1), TimeMs: 1, Data: []byte(`"` + strings.Repeat("x", 2000) + `"`)})
	}
	return c
}

// handIn gives a channel in two parts, as a router whose life has just begun.
func (n *node) handIn(c *gatewayv1.HandedChannel) {
	n.t.Helper()
	rest := &gatewayv1.HandedChannel{Channel: c.Channel, Epoch: c.Epoch, Events: c.Events[len(c.Events)/2:]}
	c.Events, c.More = c.Events[:len(c.Events)/2], true
	g := n.hand(1)
	for i, part := range []*gatewayv1.HandedChannel{c, rest} {
		if a, err := g.send(uint64(i+1), part); err != nil || a.Refused {
			n.t.Fatalf("part %d: %v %v", i, a, err)
		}
	}
}

// A channel that is handed with more than its new owner may keep goes on in its epoch,
// and loses the oldest of its tail.
func TestTailOverTheBoundIsCutInAHand(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.CacheBytes = 200 << 10 })
	n.handIn(handed(1<<20+7, 40))
	if events, head := n.tailOf("brief:a"); events == 0 || events >= 40 || head != 40 {
		t.Errorf("it has %d events up to %d", events, head)
	}
	e := n.sync()
	if a := e.ask(position("brief:a", 1<<20+7, 38)); !a.Recovered || offsetsOf(a.Events) != "[39 40]" {
		t.Errorf("a position within the tail: %v", a)
	}
	if a := e.ask(position("brief:a", 1<<20+7, 0)); a.Recovered || a.From == 0 {
		t.Errorf("a position before the tail: %v", a)
	}
}

// A hand that comes when its receiver has begun a newer epoch brings nothing.
func TestALateHandBringsNothing(t *testing.T) {
	n := start(t, nil, nil)
	n.publish1("brief:a", `1`, "")
	at := n.sync().ask(&gatewayv1.Ask{Channel: "brief:a"})
	n.handIn(handed(3, 10))
	if a := n.sync().ask(&gatewayv1.Ask{Channel: "brief:a"}); a.Epoch != at.Epoch || a.Head != 1 {
		t.Errorf("it is at %d %d, and was at %d 1", a.Epoch, a.Head, at.Epoch)
	}
}
