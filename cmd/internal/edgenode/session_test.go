package edgenode

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/client"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func token(t *testing.T, sub string) string {
	t.Helper()
	text, err := auth.Mint([]byte(secret), sub, nil, nil, time.Hour, time.Now().Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// From the moment that an edge of a new cluster is ready every client gets a ticket:
// ten of 300 that came in its first moments had none, and came back as strangers.
func TestAReadyEdgeGivesTickets(t *testing.T) {
	p := newPair(t)
	for _, n := range []*Node{p.one, p.two} {
		eventually(t, "the edge is ready", n.Ready)
		if _, _, ok := n.control.Mint(time.Now()); !ok {
			t.Error("ready without a key for tickets")
		}
	}
}

// Both conns of a session deliver while it moves; the new one brings what its
// position lacks, and no token is needed.
func TestASessionMovesBetweenEdgesByTicket(t *testing.T) {
	p := newPair(t)
	old, hello := p.connect(p.one, fmt.Sprintf(`"attempt":1,"token":%q,"subscriptions":[{"channel":"user:ann"}]`, token(t, "ann")))
	if hello["type"] != "connected" || hello["ticket"] == nil {
		t.Fatalf("got %v", hello)
	}
	entry := hello["subscriptions"].([]any)[0].(map[string]any)
	if entry["pending"] == true {
		entry = old.next()
	}
	p.publish("user:ann", "1")
	old.wantEvent(1)
	young, there := p.connect(p.two, fmt.Sprintf(`"attempt":2,"ticket":%q,"subscriptions":[{"channel":"user:ann","epoch":%q,"offset":0}]`, hello["ticket"], entry["epoch"]))
	if there["resumed"] != true || there["session"] != hello["session"] || there["node"] != "edge-2" {
		t.Errorf("got %v", there)
	}
	eventually(t, "the old conn counts no more", func() bool {
		return metric(t, p.one, "spillway_gateway_conns") == 0 && metric(t, p.one, "spillway_gateway_superseded_conns") == 1
	})
	young.wantEvent(1)
	p.publish("user:ann", "2")
	old.wantEvent(2)
	young.wantEvent(2)
}

func (p *pair) publish(channel, data string) {
	p.t.Helper()
	p.call(func(ctx context.Context) error {
		_, err := p.publisher.Publish(ctx, &routerv1.PublishRequest{Publication: &routerv1.Publication{
			Channel: channel, Data: &routerv1.Publication_Json{Json: data},
		}})
		return err
	})
}

// wantEvent wants this offset next; a verdict that was late may come before.
func (u *user) wantEvent(offset int) {
	u.t.Helper()
	f := u.next()
	if f["type"] == "subscribed" {
		f = u.next()
	}
	if f["type"] != "event" || f["offset"] != float64(offset) {
		u.t.Errorf("got %v, want event %d", f, offset)
	}
}

func TestARevocationReachesEveryEdgeAlsoOneThatWasAway(t *testing.T) {
	p := newPair(t)
	ann, here := p.connect(p.one, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "ann")))
	also, there := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "ann")))
	bob, _ := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "bob")))
	carl, _ := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "carl")))
	p.revoke("ann")
	ann.wantError("revoked", 4100)
	also.wantError("revoked", 4100)
	for _, n := range []*Node{p.one, p.two} {
		for _, f := range []map[string]any{here, there} {
			u, answer := p.connect(n, fmt.Sprintf(`"attempt":2,"ticket":%q`, f["ticket"]))
			if answer["code"] != "revoked" {
				t.Errorf("a ticket opened: %v", answer)
			}
			u.send(fmt.Sprintf(`{"type":"connect","id":2,"token":%q}`, token(t, "ann")))
			u.wantError("revoked", 4100)
		}
	}
	// An edge that is cut off from bus and etcd goes on with what it knows, and closes
	// what it missed when it is back.
	for _, way := range p.ways {
		way.set(true)
	}
	p.disconnect("bob", 4200)
	p.revoke("carl")
	bob.alive()
	carl.alive()
	for _, way := range p.ways {
		way.set(false)
	}
	bob.wantError("forbidden", 4200)
	carl.wantError("revoked", 4100)
	if _, back := p.connect(p.two, fmt.Sprintf(`"token":%q`, token(t, "bob"))); back["type"] != "connected" {
		t.Errorf("credentials of a disconnected user: %v", back)
	}
}

// What an operator does, as a client with our SDK lives it: a disconnect costs no call
// of the token provider, a revocation one, and a new session.
func TestTheTokenProviderIsAskedOnlyWhenTheTokenIsBad(t *testing.T) {
	p := newPair(t)
	issued := time.Now().Add(-time.Minute)
	var mu sync.Mutex // guards issued
	c, err := client.New("ws://"+p.one.Addr()+"/v1/ws",
		client.WithRandom(func(d time.Duration) time.Duration { return d / 100 }),
		client.WithToken(func(context.Context) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return auth.Mint([]byte(secret), "ann", nil, nil, time.Hour, issued)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.call(c.Connect)
	session := c.Info().Session
	p.disconnect("ann", 4000)
	eventually(t, "it is back by ticket", func() bool { return c.Stats().Resumes == 1 && c.State() == client.Connected })
	if s := c.Stats(); s.TokenCalls != 1 || c.Info().Session != session {
		t.Errorf("after a disconnect: session %s, then %s, %+v", session, c.Info().Session, s)
	}
	mu.Lock()
	issued = time.Now().Add(2 * time.Second) // clocks differ
	mu.Unlock()
	p.revoke("ann")
	eventually(t, "it is back by token", func() bool { return c.Stats().Connects == 3 && c.State() == client.Connected })
	if s := c.Stats(); s.TokenCalls != 2 || s.Resumes != 1 || c.Info().Session == session {
		t.Errorf("after a revocation: session %s, then %s, %+v", session, c.Info().Session, s)
	}
}
