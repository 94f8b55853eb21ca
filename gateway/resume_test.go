package gateway

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/ticket"
)

// oneKey is a ring of one key.
type oneKey struct{ away atomic.Bool }

var ringKey = bytes.Repeat([]byte("k"), 32)

func (k *oneKey) Mint(time.Time) (uint32, []byte, bool) { return 1, ringKey, !k.away.Load() }
func (k *oneKey) Key(id uint32) ([]byte, bool)          { return ringKey, id == 1 }

// counted counts what a verifier is asked.
type counted struct {
	Verifier
	n atomic.Int64
}

func (v *counted) Verify(token string, now time.Time) (*auth.Claims, error) {
	v.n.Add(1)
	return v.Verifier.Verify(token, now)
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// resuming is a closed edge with tickets, and what it is made of.
type resuming struct {
	*world
	keys     *oneKey
	verifier *counted
	revoked  *recorded
	log      *lockedBuffer
}

func newResuming(t *testing.T, change func(*Config, *Deps)) *resuming {
	t.Helper()
	r := &resuming{keys: new(oneKey), revoked: new(recorded), log: new(lockedBuffer)}
	r.world = newWorldOf(t, func(c *Config, d *Deps) {
		c.Anonymous, c.Cluster = false, "/spillway/test"
		c.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.verifier = &counted{Verifier: d.Verifier}
		d.Verifier, d.Tickets, d.Revocations = r.verifier, r.keys, r.revoked
		if change != nil {
			change(c, d)
		}
	})
	return r
}

func tokenOf(t *testing.T, more jwt.MapClaims) string {
	t.Helper()
	return sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(more))
}

// welcomed connects with these fields and returns the client and its `connected`.
func (w *world) welcomed(fields string) (*client, frame) {
	w.t.Helper()
	c := w.connect(fields)
	return c, c.expect(`{"type":"connected"}`)
}

func byToken(token string) string    { return fmt.Sprintf(`,"token":%q`, token) }
func byTicket(f frame, n int) string { return fmt.Sprintf(`,"ticket":%q,"attempt":%d`, f["ticket"], n) }
func subscribing(names ...string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = fmt.Sprintf(`{"channel":%q}`, name)
	}
	return `,"subscriptions":[` + strings.Join(list, ",") + `]`
}

// onLoops runs f on every loop and waits for it.
func (w *world) onLoops(f func(*loop)) {
	w.t.Helper()
	done := make(chan struct{}, len(w.edge.loops))
	for _, l := range w.edge.loops {
		l.inbox.Post(job(func(l *loop) { f(l); done <- struct{}{} }))
	}
	for range w.edge.loops {
		select {
		case <-done:
		case <-time.After(patience):
			w.t.Fatal("a loop stands still")
		}
	}
}

type job func(*loop)

func (j job) apply(l *loop) { j(l) }

// onSessions runs f on the loop of each session.
func (w *world) onSessions(f func(*conn)) {
	w.t.Helper()
	w.onLoops(func(l *loop) {
		for _, c := range l.slots {
			if c != nil && c.session != nil {
				f(c)
			}
		}
	})
}

func TestATicketStandsForTheTokenWithoutACheck(t *testing.T) {
	w := newResuming(t, nil)
	token := tokenOf(t, jwt.MapClaims{"join": []string{"user:ann"}, "jti": "t1"})
	first, hello := w.welcomed(byToken(token) + `,"attempt":1`)
	if hello["resumed"] != false || hello["ticket"] == nil || len(hello["session"].(string)) != 22 {
		t.Fatalf("got %s", hello)
	}
	checks := w.verifier.n.Load()
	c := w.connect(byTicket(hello, 2) + subscribing("chat:1", "news:1"))
	again := c.expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q,"subscriptions":[
		{"channel":"chat:1","recovered":false},{"channel":"news:1","error":{"code":"forbidden"}},{"channel":"user:ann","recovered":false}]}`, hello["session"]))
	if ms, ok := again["expires_in_ms"].(float64); !ok || ms <= 0 || ms > 3_600_000 {
		t.Errorf("expires_in_ms: %v", again["expires_in_ms"])
	}
	c.send(`{"type":"publish","id":2,"channel":"chat:1","data":1}`)
	w.publish("user:ann", "1")
	got := c.next()["type"].(string) + c.next()["type"].(string) + c.next()["type"].(string)
	if strings.Count(got, "event") != 2 || !strings.Contains(got, "published") {
		t.Errorf("got %s", got)
	}
	if n := w.verifier.n.Load(); n != checks {
		t.Errorf("a token was checked %d times", n-checks)
	}
	// It is not used up, and the ticket of the second connection is as good.
	first.conn.Close()
	w.connect(byTicket(again, 3)).expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q}`, hello["session"]))
	w.connect(byTicket(hello, 4)).expect(`{"type":"connected","resumed":true}`)
}

// seal makes a ticket that the edge did not.
func (r *resuming) seal(cluster string, x ticket.Ticket, who *auth.Claims) string {
	r.t.Helper()
	text, err := ticket.New(cluster, r.keys).Seal(x, who, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

func TestTicketsThatAreNotGoodFallBackToTheToken(t *testing.T) {
	w := newResuming(t, nil)
	token := tokenOf(t, nil)
	_, hello := w.welcomed(byToken(token))
	good := hello["ticket"].(string)
	ann := &auth.Claims{Subject: "ann", Expires: time.Now().Add(time.Hour)}
	resume := ticket.Ticket{Kind: ticket.Resume, HasSession: true}
	late := resume
	late.Expires = time.Now().Add(-time.Second)
	over := &auth.Claims{Subject: "ann", Expires: time.Now().Add(-time.Second)}
	for name, x := range map[string]struct{ ticket, code string }{
		"tampered":                {good[:50] + "AAAAAA" + good[56:], "unauthorized"},
		"garbage":                 {"x", "unauthorized"},
		"a token":                 {token, "unauthorized"},
		"expired":                 {w.seal("/spillway/test", late, ann), "expired"},
		"token's life over":       {w.seal("/spillway/test", resume, over), "expired"},
		"another cluster":         {w.seal("/spillway/other", resume, ann), "unauthorized"},
		"anonymous":               {w.seal("/spillway/test", resume, auth.Anonymous()), "unauthorized"},
		"a pass without identity": {w.seal("/spillway/test", ticket.Ticket{Kind: ticket.Pass}, nil), "unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.connect(fmt.Sprintf(`,"ticket":%q`, x.ticket))
			c.t = t
			c.expect(fmt.Sprintf(`{"type":"error","id":1,"code":%q}`, x.code))
			c.send(fmt.Sprintf(`{"type":"connect","id":2,"ticket":%q,"token":%q}`, x.ticket, token))
			if f := c.expect(`{"type":"connected","id":2,"resumed":false}`); f["session"] == hello["session"] {
				t.Error("a ticket that is not good gave its session")
			}
		})
	}
}

func TestATicketNeverOutlivesItsToken(t *testing.T) {
	w := newResuming(t, nil)
	c, hello := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"exp": time.Now().Add(3 * time.Second).Unix()})))
	c.conn.Close()
	c, _ = w.welcomed(byTicket(hello, 2))
	c.send(`{"type":"ping","id":2}`)
	if f := c.expect(`{"type":"pong"}`); f["ticket"] != nil {
		t.Error("a ticket that lives no longer was minted")
	}
	c.expect(`{"type":"error","code":"expired","close":4100}`)
	c.expectClose(4100)
	w.connect(byTicket(hello, 3)).expect(`{"type":"error","code":"expired"}`)
}

func TestAPassWithIdentityResumes(t *testing.T) {
	w := newResuming(t, nil)
	id := [16]byte{1, 2, 3}
	pass := w.seal("/spillway/test", ticket.Ticket{Kind: ticket.Pass, HasSession: true, Session: id, Nonce: 9}, &auth.Claims{Subject: "ann", Expires: time.Now().Add(time.Hour)})
	w.connect(fmt.Sprintf(`,"ticket":%q`, pass)).expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q}`, sessionName(id)))
}

func TestRightsLeftOutOfATicketComeBackWithTheToken(t *testing.T) {
	w := newResuming(t, nil)
	rights := map[string]any{}
	for i := range 100 {
		rights[fmt.Sprintf("chat:room-%d", i)] = []string{"subscribe", "publish", "history"}
	}
	token := tokenOf(t, jwt.MapClaims{"channels": rights})
	_, hello := w.welcomed(byToken(token))
	claims, err := func() (*auth.Claims, error) {
		opened, err := w.edge.credentials.Open(hello["ticket"].(string), time.Now())
		if err != nil {
			return nil, err
		}
		return opened.Claims()
	}()
	if err != nil || !claims.Partial {
		t.Fatalf("the ticket holds 100 rights: %v", err)
	}
	kept, missing := "", ""
	for name := range rights {
		if claims.Allows(name, auth.Subscribe) {
			kept = name
		} else {
			missing = name
		}
	}
	// The token too: every right, the same session.
	c := w.connect(byTicket(hello, 2) + byToken(token) + subscribing(kept, missing, "other:1"))
	both := c.expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q,"subscriptions":[
		{"recovered":false},{"channel":%q,"recovered":false},{"error":{"code":"forbidden"}}]}`, hello["session"], missing))
	// No token: what may be missing is unauthorized, never forbidden.
	c = w.connect(byTicket(both, 3) + subscribing(kept, missing, "user:bob"))
	c.expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q,"subscriptions":[
		{"channel":%q,"recovered":false},{"error":{"code":"unauthorized"}},{"error":{"code":"unauthorized"}}]}`, hello["session"], kept))
	c.send(fmt.Sprintf(`{"type":"publish","id":2,"channel":%q,"data":1}`, missing))
	c.expect(`{"type":"error","id":2,"code":"unauthorized"}`)
	c.send(fmt.Sprintf(`{"type":"history","id":3,"channel":%q,"limit":1}`, missing))
	c.expect(`{"type":"error","id":3,"code":"unauthorized"}`)
	c.send(fmt.Sprintf(`{"type":"refresh","id":4,"token":%q}`, token))
	c.expect(`{"type":"refreshed","id":4}`)
	c.send(fmt.Sprintf(`{"type":"subscribe","id":5,"channel":%q}`, missing))
	c.expect(`{"type":"subscribed","id":5,"recovered":false}`)
	// A token that is not good takes nothing away; one of somebody else is his.
	w.connect(byTicket(both, 4) + byToken("x.y.z") + subscribing(kept)).
		expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q,"subscriptions":[{"recovered":false}]}`, hello["session"]))
	f := w.connect(byTicket(both, 5) + byToken(tokenOf(t, jwt.MapClaims{"sub": "bob"})) + subscribing("user:bob", "user:ann")).
		expect(`{"type":"connected","resumed":false,"subscriptions":[{"recovered":false},{"error":{"code":"forbidden"}}]}`)
	if f["session"] == hello["session"] {
		t.Error("somebody else got the session")
	}
}

func TestAFreshTicketComesWhenTheOldIsPastHalfOfItsLife(t *testing.T) {
	w := newResuming(t, nil)
	c, hello := w.welcomed(byToken(tokenOf(t, jwt.MapClaims{"exp": time.Now().Add(5 * time.Hour).Unix()})))
	half := uint32(ticket.Life/time.Second) / 2
	w.onSessions(func(c *conn) {
		if due := c.session.renewAt - c.session.stay.Since; due < half-1 || due > half+1 {
			t.Errorf("the next ticket is due after %d s", due)
		}
	})
	ping := func(id int) frame {
		c.send(fmt.Sprintf(`{"type":"ping","id":%d}`, id))
		return c.expect(`{"type":"pong"}`)
	}
	if f := ping(2); f["ticket"] != nil {
		t.Errorf("too early: %s", f)
	}
	w.onSessions(func(c *conn) { c.session.renewAt = 1 })
	f := ping(3)
	if f["ticket"] == nil || f["ticket"] == hello["ticket"] {
		t.Fatalf("no fresh one: %s", f)
	}
	if f := ping(4); f["ticket"] != nil {
		t.Errorf("another one at once: %s", f)
	}
	w.connect(byTicket(f, 2)).expect(fmt.Sprintf(`{"type":"connected","resumed":true,"session":%q}`, hello["session"]))
	// New credentials bring one too, with the new rights.
	c.send(fmt.Sprintf(`{"type":"refresh","id":5,"token":%q}`, tokenOf(t, jwt.MapClaims{"channels": []string{"other:*"}})))
	f = c.expect(`{"type":"refreshed","id":5}`)
	w.connect(byTicket(f, 3) + subscribing("other:1", "chat:1")).
		expect(`{"type":"connected","resumed":true,"subscriptions":[{"recovered":false},{"error":{"code":"forbidden"}}]}`)
}

func TestWithoutAKeyClientsComeByToken(t *testing.T) {
	w := newResuming(t, nil)
	w.keys.away.Store(true)
	c, hello := w.welcomed(byToken(tokenOf(t, nil)))
	if hello["ticket"] != nil {
		t.Errorf("got %s", hello)
	}
	w.keys.away.Store(false)
	w.onSessions(func(c *conn) { c.session.renewAt = min(c.session.renewAt, 1) })
	c.send(`{"type":"ping","id":2}`)
	if f := c.expect(`{"type":"pong"}`); f["ticket"] == nil {
		t.Error("no ticket after the first key came")
	}
}

func TestTicketsAndTokensAppearInNoLogMetricOrURL(t *testing.T) {
	w := newResuming(t, func(c *Config, d *Deps) { d.Messenger = new(party) })
	token := tokenOf(t, jwt.MapClaims{"exp": time.Now().Add(5 * time.Hour).Unix(), "jti": "token-id-1"})
	c, hello := w.welcomed(byToken(token) + `,"attempt":1`)
	w.onSessions(func(c *conn) { c.session.renewAt = 1 })
	c.send(`{"type":"ping","id":2}`)
	pong := c.expect(`{"type":"pong"}`)
	good := hello["ticket"].(string)
	bad := good[:50] + "AAAAAA" + good[56:]
	_, again := w.welcomed(byTicket(pong, 2))
	w.connect(fmt.Sprintf(`,"ticket":%q`, bad)).expect(`{"type":"error"}`)
	offering := w.dial("spillway.v1.json", "spillway.ticket."+good)
	offering.send(fmt.Sprintf(`{"type":"connect","id":1,"ticket":%q}`, good))
	offering.expect(`{"type":"connected"}`)
	w.raw(upgradeRequest("Sec-WebSocket-Protocol: other, spillway.ticket." + bad + "\r\n"))
	w.revoked.add("ann", "token-id-1", 4100)
	c.expectClose(4100)
	for _, secret := range []string{token, good, bad, pong["ticket"].(string), again["ticket"].(string)} {
		part := secret[len(secret)-20:]
		if strings.Contains(w.log.String(), part) {
			t.Errorf("the log holds a secret: %s", w.log)
		}
		families, err := w.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if text := family.String(); strings.Contains(text, part) {
				t.Errorf("a metric holds a secret: %s", text)
			}
		}
	}
	answer := w.raw("GET /v1/connect HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Protocol: spillway.ticket." + good + "\r\n\r\n")
	if i := strings.Index(answer, `"url":"`); i >= 0 && strings.Contains(answer[i:], good[:20]) {
		t.Errorf("a URL holds a ticket: %s", answer)
	}
}

// party is a Messenger that carries words to all who hear.
type party struct {
	mu   sync.Mutex // guards below
	ears map[int]func([]byte)
	next int
	deaf bool
	said int
}

func (p *party) Broadcast(_ string, message []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said++
	if !p.deaf {
		for _, heard := range p.ears {
			heard(message)
		}
	}
	return nil
}

func (p *party) Listen(ctx context.Context, _ string, heard func([]byte)) error {
	p.mu.Lock()
	if p.ears == nil {
		p.ears = make(map[int]func([]byte))
	}
	p.next++
	n := p.next
	p.ears[n] = heard
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	delete(p.ears, n)
	p.mu.Unlock()
	return nil
}

var _ Messenger = (*party)(nil)

// What the door opened counts like a ticket in the frame, once; the frame's goes first.
func TestATicketOfTheUpgradeCountsLikeOneInTheFrame(t *testing.T) {
	w := newResuming(t, nil)
	who := &auth.Claims{Subject: "ann", Expires: time.Now().Add(time.Hour)}
	session := func(n byte) ticket.Ticket {
		return ticket.Ticket{Kind: ticket.Resume, HasSession: true, Session: [16]byte{n}}
	}
	offered, err := w.edge.credentials.Open(w.seal("/spillway/test", session(1), who), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pass, err := w.edge.credentials.Open(w.seal("/spillway/test", ticket.Ticket{Kind: ticket.Pass}, nil), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	inFrame := w.seal("/spillway/test", session(2), who)
	for name, x := range map[string]struct {
		offered *ticket.Ticket
		fields  string
		want    string
	}{
		"the door's alone":                     {offered, ``, `{"type":"connected","resumed":true,"session":"` + sessionName([16]byte{1}) + `"}`},
		"both":                                 {offered, fmt.Sprintf(`,"ticket":%q`, inFrame), `{"type":"connected","resumed":true,"session":"` + sessionName([16]byte{2}) + `"}`},
		"the frame's is not good":              {offered, `,"ticket":"x"`, `{"type":"connected","resumed":true,"session":"` + sessionName([16]byte{1}) + `"}`},
		"a pass at the door, one in the frame": {pass, fmt.Sprintf(`,"ticket":%q`, inFrame), `{"type":"connected","resumed":true,"session":"` + sessionName([16]byte{2}) + `"}`},
		"a pass at the door alone":             {pass, ``, `{"type":"error","code":"unauthorized"}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.dial()
			c.t = t
			eventually(t, "the conn is there", func() bool { return w.offer(x.offered) })
			c.send(`{"type":"connect","id":1` + x.fields + `}`)
			c.expect(x.want)
		})
	}
}

// offer gives the conn that has not said connect a ticket; false: there is none.
func (w *world) offer(t *ticket.Ticket) (found bool) {
	w.onLoops(func(l *loop) {
		for _, c := range l.slots {
			if c != nil && c.greeting == greetWaiting && c.refused == 0 && c.offered == nil {
				c.offered = t
				w.set(func() { found = true })
			}
		}
	})
	return found
}
