package gateway

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// mute is a Messenger that nobody answers.
type mute struct{ away atomic.Bool }

func (m *mute) Broadcast(string, []byte) error {
	if m.away.Load() {
		return presence.ErrBusAway
	}
	return nil
}

func (m *mute) Listen(ctx context.Context, _ string, _ func([]byte)) error {
	<-ctx.Done()
	return nil
}

// An edge to which more come than to others gives slots of its own, named by its own
// address, for two seconds of its rate; past that newcomers hear where there is nothing
// to wait for. When the others tell that they have as much to do, it gives slots again;
// and so it does while it cannot tell the others anything, and may not hear them.
func TestAnEdgeThatMostCameToSendsNewcomersToOthers(t *testing.T) {
	messenger := new(mute)
	there := new(region)
	w := newResuming(t, withRegion(there, func(c *Config, d *Deps) {
		lanes(2, 1, 0)(c, d)
		d.Messenger = messenger
		there.members = append(there.members, &presence.Member{
			Id: c.ID, Role: gatewayv1.Role_ROLE_EDGE, Region: "default", State: gatewayv1.State_STATE_SERVING, Address: "wss://edge-1.example/v1/ws",
		})
	}))
	const own, least, most = "wss://edge-1.example/v1/ws", 250, 1_000
	refusal := func() verdict {
		for {
			if v := w.hear(w.knock()); !v.admitted {
				return v
			}
		}
	}
	sent := func(v verdict) bool {
		return v.busy.URL != own && v.busy.URL != "" && v.busy.Ticket == "" && v.busy.Scope == "node" && v.busy.RetryAfterMS >= least && v.busy.RetryAfterMS <= most
	}
	first := refusal()
	if first.busy.Ticket == "" || first.busy.URL != own || first.busy.Scope != "region" {
		t.Errorf("the first one hears %+v, want a slot here", first.busy)
	}
	slots := 0
	eventually(t, "newcomers are sent to others", func() bool {
		v := refusal()
		slots++
		return sent(v)
	})
	if slots < 6 {
		t.Errorf("only %d heard a slot: two seconds of two lanes are 8", slots)
	}
	say := func(ms uint32) {
		for _, id := range []string{"edge-2", "edge-3"} {
			b, err := proto.Marshal(&gatewayv1.Takeovers{Edge: id, BacklogMs: ms})
			if err != nil {
				t.Fatal(err)
			}
			w.edge.takeovers.heard(b)
		}
	}
	eventually(t, "others that have more to do are not sent anybody", func() bool { say(20_000); return !sent(refusal()) })
	eventually(t, "others that have less are", func() bool { say(0); return sent(refusal()) })
	messenger.away.Store(true)
	eventually(t, "an edge whose bus is away sends nobody on", func() bool { say(0); return !sent(refusal()) })
}
