package ticket

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/spillway-io/spillway/gateway/auth"
)

var now = time.Unix(1_800_000_000, 0)

// ring is Keys by hand: mint is 0 while every key is too young.
type ring struct {
	keys map[uint32][]byte
	mint uint32
}

func (r *ring) Mint(time.Time) (uint32, []byte, bool) {
	key, ok := r.keys[r.mint]
	return r.mint, key, ok
}

func (r *ring) Key(id uint32) ([]byte, bool) { key, ok := r.keys[id]; return key, ok }

func newRing() *ring {
	r := &ring{keys: map[uint32][]byte{}, mint: 2}
	for id := range uint32(3) {
		r.keys[id+1] = []byte(strings.Repeat(fmt.Sprint(id), 32))
	}
	return r
}

const secret = "a secret of thirty-two characters"

// claimsOf is what the verifier makes of a token.
func claimsOf(t testing.TB, change func(jwt.MapClaims)) (*auth.Claims, string) {
	t.Helper()
	c := jwt.MapClaims{
		"sub": "ann", "exp": now.Add(2 * time.Hour).Unix(), "iat": now.Add(-time.Minute).Unix(), "jti": "token-1",
		"channels": map[string]any{"chat:*": []string{"subscribe", "publish"}, "news": []string{"history"}},
		"join":     []string{"chat:lobby", "system"}, "tier": "critical", "info": map[string]any{"name": "Ann"},
	}
	if change != nil {
		change(c)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	v, err := auth.New(auth.Config{HS256: []byte(secret), MaxTTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := v.Verify(token, now)
	if err != nil {
		t.Fatal(err)
	}
	return claims, token
}

func mustSeal(t testing.TB, b *Box, x Ticket, claims *auth.Claims) string {
	t.Helper()
	text, err := b.Seal(x, claims, now)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEachKindComesBackAsItWasSealed(t *testing.T) {
	b := New("/spillway/c1", newRing())
	claims, _ := claimsOf(t, nil)
	session := [16]byte{1, 2, 15: 9}
	from, until := now.Add(time.Second), now.Add(6*time.Second)
	for _, x := range []struct {
		name   string
		ticket Ticket
		claims *auth.Claims
	}{
		{"resume", Ticket{Kind: Resume, HasSession: true, Session: session, Edge: "edge-1"}, claims},
		{"moved", Ticket{Kind: Moved, HasSession: true, Session: session, Edge: "edge-1", Operation: "op", Target: "edge-2", SlotFrom: from, SlotUntil: until}, claims},
		{"pass", Ticket{Kind: Pass, Edge: "edge-1", Lane: 2, Nonce: 1<<63 + 5, SlotFrom: from, SlotUntil: until, Expires: until}, nil},
		{"pass with identity", Ticket{Kind: Pass, HasSession: true, Session: session, Edge: "e", Lane: 1, Nonce: 7, SlotFrom: from, SlotUntil: until}, claims},
		{"anonymous", Ticket{Kind: Resume, HasSession: true, Session: session, Edge: "edge-1"}, auth.Anonymous()},
	} {
		t.Run(x.name, func(t *testing.T) {
			text := mustSeal(t, b, x.ticket, x.claims)
			got, err := b.Open(text, now)
			if err != nil {
				t.Fatal(err)
			}
			want := x.ticket
			if want.Expires.IsZero() {
				want.Expires = now.Add(Life)
			}
			if got.Kind != want.Kind || got.Session != want.Session || got.HasSession != want.HasSession || got.Edge != want.Edge ||
				got.Operation != want.Operation || got.Target != want.Target || got.Lane != want.Lane || got.Nonce != want.Nonce ||
				!got.SlotFrom.Equal(want.SlotFrom) || !got.SlotUntil.Equal(want.SlotUntil) || !got.Expires.Equal(want.Expires) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if got.HasIdentity != (x.claims != nil) {
				t.Error("identity")
			}
		})
	}
}

func TestClaimsSurviveATicket(t *testing.T) {
	b := New("/spillway/c1", newRing())
	claims, _ := claimsOf(t, nil)
	opened, err := b.Open(mustSeal(t, b, Ticket{Kind: Resume}, claims), now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := opened.Claims()
	if err != nil {
		t.Fatal(err)
	}
	if got.Subject != "ann" || got.ID != "token-1" || !got.Critical || got.Partial || !opened.Critical ||
		!got.Expires.Equal(claims.Expires) || !got.IssuedAt.Equal(claims.IssuedAt) ||
		strings.Join(got.Join, ",") != "chat:lobby,system" || string(got.Info) != string(claims.Info) || !json.Valid(got.Info) {
		t.Errorf("got %+v", got)
	}
	for _, channel := range []string{"chat:1", "chat:lobby", "news", "system", "other", "user:ann", "user:bob"} {
		for right := auth.Subscribe; right <= auth.Presence; right <<= 1 {
			if got.Allows(channel, right) != claims.Allows(channel, right) {
				t.Errorf("%s, right %d: %v, the token gave %v", channel, right, got.Allows(channel, right), claims.Allows(channel, right))
			}
		}
	}
	anonymous, err := b.Open(mustSeal(t, b, Ticket{Kind: Resume}, auth.Anonymous()), now)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := anonymous.Claims(); err != nil || c.Subject != "" || !c.Expires.IsZero() || !c.Allows("user:x", auth.Publish) {
		t.Errorf("anonymous: %+v %v", c, err)
	}
	pass, err := b.Open(mustSeal(t, b, Ticket{Kind: Pass}, nil), now)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := pass.Claims(); c != nil || err != nil {
		t.Errorf("a pass without identity has %+v", c)
	}
}

func TestRightsThatDoNotFitAreLeftOutAndNoneIsAdded(t *testing.T) {
	b := New("/spillway/c1", newRing())
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("chat:room-%d", i))
	}
	claims, _ := claimsOf(t, func(c jwt.MapClaims) {
		c["channels"], c["info"] = many, strings.Repeat("x", 2000)
	})
	text := mustSeal(t, b, Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims)
	if len(text) > MaxChars || len(text) < MaxChars*9/10 {
		t.Errorf("%d characters", len(text))
	}
	opened, err := b.Open(text, now)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := opened.Claims()
	if !opened.Partial || !got.Partial || got.Info != nil {
		t.Errorf("not marked as partial: %+v", opened)
	}
	same, _ := b.Open(mustSeal(t, b, Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims), now)
	if same == nil || same.rights != opened.rights {
		t.Error("another ticket of the same claims lacks other rights")
	}
	kept := 0
	for _, channel := range append(many, "chat:other", "room") {
		if got.Allows(channel, auth.Subscribe) {
			kept++
			if !claims.Allows(channel, auth.Subscribe) {
				t.Errorf("%s: the token did not give it", channel)
			}
		}
	}
	if kept < 20 {
		t.Errorf("only %d rights fit", kept)
	}
	// What is made from a partial one is partial.
	again, err := b.Open(mustSeal(t, b, Ticket{Kind: Resume}, got), now)
	if err != nil || !again.Partial {
		t.Errorf("%+v %v", again, err)
	}
	if _, err := b.Seal(Ticket{Kind: Resume, Edge: strings.Repeat("e", 256)}, claims, now); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an edge of 256 bytes: %v", err)
	}
	claims.ID = strings.Repeat("j", 300)
	if _, err := b.Seal(Ticket{Kind: Resume}, claims, now); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a jti of 300 bytes: %v", err)
	}
}

// A ticket has one text: line ends, which encoding/base64 skips, do not make another,
// however long the ticket is.
func TestATicketHasOneText(t *testing.T) {
	b := New("/spillway/c1", newRing())
	for n := range 8 {
		good := mustSeal(t, b, Ticket{Kind: Resume, HasSession: true, Edge: strings.Repeat("e", n)}, nil)
		for _, end := range []string{"\n", "\r\n", "\n\n\n", "\n\n\n\n", "A", "="} {
			if _, err := b.Open(good+end, now); !errors.Is(err, ErrNotGood) {
				t.Errorf("%d characters and %q behind: %v", len(good), end, err)
			}
		}
	}
}

func TestTicketsThatAreNotGood(t *testing.T) {
	keys := newRing()
	b := New("/spillway/c1", keys)
	claims, token := claimsOf(t, nil)
	short, _ := claimsOf(t, func(c jwt.MapClaims) { c["exp"] = now.Add(time.Minute).Unix() })
	good := mustSeal(t, b, Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims)
	flip := func(i int) string {
		c := byte('A')
		if good[i] == c {
			c = 'B'
		}
		return good[:i] + string(c) + good[i+1:]
	}
	forgotten := newRing()
	delete(forgotten.keys, 2)
	changed := newRing()
	changed.keys[2] = []byte(strings.Repeat("z", 32))
	for _, x := range []struct {
		name string
		box  *Box
		text string
		at   time.Duration
		want error
	}{
		{"good", b, good, 0, nil},
		{"good to the end", b, good, Life - time.Millisecond, nil},
		{"expired", b, good, Life, ErrExpired},
		{"the token's life is over", b, mustSeal(t, b, Ticket{Kind: Resume}, short), time.Minute, ErrExpired},
		{"the token is still good", b, mustSeal(t, b, Ticket{Kind: Resume}, short), time.Minute - time.Millisecond, nil},
		{"key id changed", b, flip(3), 0, ErrNotGood},
		{"nonce changed", b, flip(10), 0, ErrNotGood},
		{"fields changed", b, flip(40), 0, ErrNotGood},
		{"tag changed", b, flip(len(good) - 2), 0, ErrNotGood},
		{"cut", b, good[:len(good)-4], 0, ErrNotGood},
		{"one more character", b, good + "A", 0, ErrNotGood},
		{"line feed inside", b, good[:8] + "\n" + good[8:], 0, ErrNotGood},
		{"padded", b, good + "=", 0, ErrNotGood},
		{"another cluster", New("/spillway/c2", keys), good, 0, ErrNotGood},
		{"key unknown", New("/spillway/c1", forgotten), good, 0, ErrNotGood},
		{"another key of that id", New("/spillway/c1", changed), good, 0, ErrNotGood},
		{"empty", b, "", 0, ErrNotGood},
		{"a token", b, token, 0, ErrNotGood},
		{"too long", b, strings.Repeat("A", MaxChars+1), 0, ErrNotGood},
		{"zeros", b, strings.Repeat("A", MaxChars), 0, ErrNotGood},
	} {
		t.Run(x.name, func(t *testing.T) {
			if _, err := x.box.Open(x.text, now.Add(x.at)); !errors.Is(err, x.want) {
				t.Errorf("got %v, want %v", err, x.want)
			}
		})
	}
	// A key that left the ring opens nothing, used before or not.
	delete(keys.keys, 2)
	if _, err := b.Open(good, now); !errors.Is(err, ErrNotGood) {
		t.Errorf("after its key is gone: %v", err)
	}
}

func TestNoTicketWithoutAKeyOldEnough(t *testing.T) {
	keys := newRing()
	b := New("/spillway/c1", keys)
	keys.mint = 0
	if text, err := b.Seal(Ticket{Kind: Resume}, nil, now); text != "" || !errors.Is(err, ErrNoKey) {
		t.Errorf("%q %v", text, err)
	}
	// Others' tickets under a key that is too young here open.
	other := newRing()
	other.mint = 3
	if _, err := b.Open(mustSeal(t, New("/spillway/c1", other), Ticket{Kind: Resume}, nil), now); err != nil {
		t.Error(err)
	}
	keys.keys[9], keys.mint = []byte("short"), 9
	if _, err := b.Seal(Ticket{Kind: Resume}, nil, now); !errors.Is(err, ErrNoKey) {
		t.Errorf("a key of 5 bytes: %v", err)
	}
}

// Rotation: both keys open, while tickets of the old one live.
func TestTicketsOutliveARotation(t *testing.T) {
	keys := newRing()
	b := New("/spillway/c1", keys)
	old := mustSeal(t, b, Ticket{Kind: Resume}, nil)
	keys.mint = 3
	young := mustSeal(t, b, Ticket{Kind: Resume}, nil)
	for range 3 {
		for _, text := range []string{old, young} {
			if _, err := b.Open(text, now); err != nil {
				t.Error(err)
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	b := New("/spillway/c1", newRing())
	claims, token := claimsOf(f, nil)
	f.Add(mustSeal(f, b, Ticket{Kind: Moved, HasSession: true, Edge: "e", Operation: "op"}, claims))
	f.Add(token)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if opened, err := b.Open(text, now); err == nil {
			if _, err := opened.Claims(); err != nil {
				t.Error(err)
			}
		}
	})
}

// What is behind the seal is read as strictly as if it were not ours.
func FuzzFields(f *testing.F) {
	claims, _ := claimsOf(f, nil)
	for _, kind := range []Kind{Resume, Moved, Pass} {
		x := Ticket{Kind: kind, HasSession: true, Edge: "e", SlotFrom: now, Expires: now}
		x.describe(claims)
		f.Add(string(x.appendFields(nil, claims)))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var x Ticket
		if len(text) > maxFields || !x.readFields(text) {
			return
		}
		c, err := x.Claims()
		if err != nil {
			return
		}
		again := string(x.appendFields(nil, c))
		var y Ticket
		if len(again) <= maxFields && !y.readFields(again) {
			t.Errorf("%q was read and %q was not", text, again)
		}
	})
}

func BenchmarkTickets(b *testing.B) {
	box := New("/spillway/c1", newRing())
	claims, token := claimsOf(b, nil)
	verifier, err := auth.New(auth.Config{HS256: []byte(secret)})
	if err != nil {
		b.Fatal(err)
	}
	text := mustSeal(b, box, Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims)
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("open", func() error { _, err := box.Open(text, now); return err })
	run("open and rights", func() error {
		t, err := box.Open(text, now)
		if err == nil {
			_, err = t.Claims()
		}
		return err
	})
	run("seal", func() error {
		_, err := box.Seal(Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims, now)
		return err
	})
	run("HS256", func() error { _, err := verifier.Verify(token, now); return err })
}
