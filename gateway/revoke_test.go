package gateway

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/spillway-io/spillway/gateway/auth"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// recorded is Revocations by hand.
type recorded struct {
	mu      sync.Mutex // guards below
	records []*gatewayv1.Revocation
	heard   func(*gatewayv1.Revocation)
}

func (r *recorded) OnRevocation(heard func(*gatewayv1.Revocation)) { r.heard = heard }

func (r *recorded) Revoked(user, tokenID string, issued time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.records {
		switch {
		case x.User != user || x.Session != "" || x.DisconnectUser:
		case x.TokenId != "" && x.TokenId == tokenID, x.IssuedBeforeMs != 0 && issued.UnixMilli() < int64(x.IssuedBeforeMs):
			return true
		}
	}
	return false
}

func (r *recorded) put(x *gatewayv1.Revocation) {
	r.mu.Lock()
	r.records = append(r.records, x)
	r.mu.Unlock()
	r.heard(x)
}

func (r *recorded) add(user, tokenID string, code uint32) {
	r.put(&gatewayv1.Revocation{User: user, TokenId: tokenID, CloseCode: code, CreatedMs: uint64(time.Now().UnixMilli())})
}

var _ Revocations = (*recorded)(nil)

func TestARevokedTokenEndsItsConnsAndOpensNoneAgain(t *testing.T) {
	w := newResuming(t, nil)
	bad := tokenOf(t, jwt.MapClaims{"jti": "bad"})
	good := tokenOf(t, jwt.MapClaims{"jti": "good"})
	victim, hello := w.welcomed(byToken(bad))
	resumed, _ := w.welcomed(byTicket(hello, 1))
	other, _ := w.welcomed(byToken(good))
	w.revoked.add("ann", "bad", 0)
	for _, c := range []*client{victim, resumed} {
		c.expect(`{"type":"error","code":"revoked","close":4100,"temporary":false}`)
		c.expectClose(4100)
	}
	w.connect(byToken(bad)).expect(`{"type":"error","code":"revoked"}`)
	w.connect(byTicket(hello, 2)).expect(`{"type":"error","code":"revoked"}`)
	other.send(fmt.Sprintf(`{"type":"refresh","id":2,"token":%q}`, bad))
	other.expect(`{"type":"error","id":2,"code":"revoked"}`)
	other.send(`{"type":"ping","id":3}`)
	other.expect(`{"type":"pong","id":3}`)
	// The ticket falls back to another token.
	w.connect(byTicket(hello, 3) + byToken(good)).expect(`{"type":"connected","resumed":false}`)
}

func TestTokensIssuedBeforeAMomentAreRevoked(t *testing.T) {
	w := newResuming(t, nil)
	now := time.Now()
	old, _ := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"iat": now.Add(-time.Hour).Unix()})))
	without, _ := w.welcomed(byToken(tokenOf(t, nil)))
	young, _ := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"iat": now.Unix()})))
	bob, _ := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"sub": "bob"})))
	w.revoked.put(&gatewayv1.Revocation{User: "ann", IssuedBeforeMs: uint64(now.Add(-time.Minute).UnixMilli()), CloseCode: 4200, Reason: "stolen"})
	for _, c := range []*client{old, without} {
		c.expect(`{"type":"error","code":"revoked","close":4200,"message":"stolen"}`)
		c.expectClose(4200)
	}
	for _, c := range []*client{young, bob} {
		c.send(`{"type":"ping","id":2}`)
		c.expect(`{"type":"pong"}`)
	}
}

func TestADisconnectEndsConnsAndLeavesCredentialsGood(t *testing.T) {
	w := newResuming(t, nil)
	token := tokenOf(t, nil)
	one, hello := w.welcomed(byToken(token))
	two, _ := w.welcomed(byToken(token))
	bob, _ := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"sub": "bob"})))
	w.revoked.put(&gatewayv1.Revocation{Session: hello["session"].(string), CloseCode: 4000, CreatedMs: uint64(time.Now().UnixMilli())})
	one.expect(`{"type":"error","code":"unavailable","temporary":true,"close":4000}`)
	one.expectClose(4000)
	two.send(`{"type":"ping","id":2}`)
	two.expect(`{"type":"pong"}`)
	w.revoked.put(&gatewayv1.Revocation{User: "ann", DisconnectUser: true, CloseCode: 4200, CreatedMs: uint64(time.Now().UnixMilli())})
	two.expect(`{"type":"error","code":"forbidden","close":4200}`)
	two.expectClose(4200)
	bob.send(`{"type":"ping","id":2}`)
	bob.expect(`{"type":"pong"}`)
	w.connect(byTicket(hello, 2)).expect(`{"type":"connected","resumed":true}`)
	w.connect(byToken(token)).expect(`{"type":"connected"}`)
}

// A record heard late, by an edge that was cut off, ends only what was there when
// it was made.
func TestADisconnectHeardLateSparesWhoCameBack(t *testing.T) {
	w := newResuming(t, nil)
	_, hello := w.welcomed(byToken(tokenOf(t, nil)))
	late := &gatewayv1.Revocation{User: "ann", DisconnectUser: true, CloseCode: 4000, CreatedMs: uint64(time.Now().Add(-time.Minute).UnixMilli())}
	w.revoked.put(late)
	w.connect(byTicket(hello, 2)).expect(`{"type":"connected","resumed":true}`)
	w.onSessions(func(c *conn) {
		if c.closing {
			t.Error("a conn that came after the disconnect was closed")
		}
	})
}

func TestWhatARecordIsAbout(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	id := [16]byte{1}
	s := &session{id: id, claims: &auth.Claims{Subject: "ann", ID: "t1", IssuedAt: now.Add(-time.Hour)}}
	ms := func(d time.Duration) uint64 { return uint64(now.Add(d).UnixMilli()) }
	for name, x := range map[string]struct {
		record *gatewayv1.Revocation
		began  time.Duration
		want   bool
	}{
		"token":                         {&gatewayv1.Revocation{User: "ann", TokenId: "t1"}, 0, true},
		"token without user":            {&gatewayv1.Revocation{TokenId: "t1"}, 0, true},
		"another token":                 {&gatewayv1.Revocation{User: "ann", TokenId: "t2"}, 0, false},
		"another user's token":          {&gatewayv1.Revocation{User: "bob", TokenId: "t1"}, 0, false},
		"issued before":                 {&gatewayv1.Revocation{User: "ann", IssuedBeforeMs: ms(0)}, 0, true},
		"issued after":                  {&gatewayv1.Revocation{User: "ann", IssuedBeforeMs: ms(-2 * time.Hour)}, 0, false},
		"session":                       {&gatewayv1.Revocation{Session: sessionName(id), CreatedMs: ms(0)}, 0, true},
		"another session":               {&gatewayv1.Revocation{Session: sessionName([16]byte{2}), CreatedMs: ms(0)}, 0, false},
		"session, heard late":           {&gatewayv1.Revocation{Session: sessionName(id), CreatedMs: ms(-time.Minute)}, -time.Hour, true},
		"session, heard late, newcomer": {&gatewayv1.Revocation{Session: sessionName(id), CreatedMs: ms(-time.Minute)}, -time.Second, false},
		"user":                          {&gatewayv1.Revocation{User: "ann", DisconnectUser: true, CreatedMs: ms(0)}, 0, true},
		"user, clock behind":            {&gatewayv1.Revocation{User: "ann", DisconnectUser: true, CreatedMs: ms(-2 * time.Second)}, -time.Second, true},
		"user, heard late, newcomer":    {&gatewayv1.Revocation{User: "ann", DisconnectUser: true, CreatedMs: ms(-time.Minute)}, -time.Second, false},
		"nothing":                       {&gatewayv1.Revocation{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			rules := newRevokeRules([]*gatewayv1.Revocation{x.record}, now)
			if got := rules.match(s, now.Add(x.began)) != nil; got != x.want {
				t.Errorf("got %v", got)
			}
			if rules.match(&session{claims: auth.Anonymous()}, now) != nil {
				t.Error("an anonymous client was meant")
			}
		})
	}
}

// However many conns there are, a turn looks at a piece of them; however many
// records come meanwhile, they are looked for together.
func TestLookingForRevokedConnsIsPaced(t *testing.T) {
	l := &loop{edge: new(Edge)}
	l.inbox.Wake = func() {}
	revoker := &revoker{loops: []*loop{l}}
	who := &auth.Claims{Subject: "ann"}
	for range 10_000 {
		l.slots = append(l.slots, &conn{session: &session{claims: who}})
	}
	revoker.hear(&gatewayv1.Revocation{User: "bob", TokenId: "x"})
	for i := range 50_000 {
		revoker.hear(&gatewayv1.Revocation{User: fmt.Sprint("user-", i), TokenId: "x"})
	}
	turns := 0
	for {
		messages := l.inbox.Take()
		if len(messages) == 0 {
			break
		}
		if turns++; len(messages) != 1 {
			t.Fatalf("%d messages in one turn", len(messages))
		}
		messages[0].apply(l)
	}
	if want := 2 * ((10_000 + revokeScan - 1) / revokeScan); turns != want {
		t.Errorf("%d turns, want %d", turns, want)
	}
	if revoker.looking || len(revoker.waiting) != 0 {
		t.Error("it did not come to an end")
	}
}

func BenchmarkRevokeWalk(b *testing.B) {
	l := &loop{edge: new(Edge)}
	l.inbox.Wake = func() {}
	for i := range revokeScan {
		l.slots = append(l.slots, &conn{session: &session{id: newSessionID(), claims: &auth.Claims{Subject: fmt.Sprint("user-", i), ID: fmt.Sprint("token-", i)}}})
	}
	var records []*gatewayv1.Revocation
	for i := range 1000 {
		records = append(records, &gatewayv1.Revocation{User: fmt.Sprint("other-", i), TokenId: "x"})
	}
	rules := newRevokeRules(records, time.Now())
	for b.Loop() {
		walk := &revokeWalk{revoker: new(revoker), rules: rules, left: new(atomic.Int32)}
		walk.left.Store(2)
		walk.apply(l)
	}
}

// meanwhile is a Verifier during whose check something else happens.
type meanwhile struct {
	Verifier
	happens atomic.Pointer[func()]
}

func (v *meanwhile) Verify(token string, now time.Time) (*auth.Claims, error) {
	if happens := v.happens.Load(); happens != nil {
		(*happens)()
	}
	return v.Verifier.Verify(token, now)
}

// A ticket from which rights were left out is good when it is opened; while the token
// beside it is checked it is revoked.
func TestATicketRevokedWhileTheTokenBesideItIsCheckedIsRefused(t *testing.T) {
	slow := new(meanwhile)
	w := newResuming(t, func(_ *Config, d *Deps) { slow.Verifier, d.Verifier = d.Verifier, slow })
	rights := map[string]any{}
	for i := range 100 {
		rights[fmt.Sprintf("chat:room-%d", i)] = []string{"subscribe"}
	}
	c, hello := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"jti": "old", "channels": rights})))
	c.conn.Close()
	eventually(t, "it is gone", func() bool { return w.edge.counts.conns.Load() == 0 })
	revoke := func() { w.revoked.add("ann", "old", 0) }
	slow.happens.Store(&revoke)
	w.connect(byTicket(hello, 2) + byToken("x.y.z")).expect(`{"type":"error","code":"revoked"}`)
}
