package gateway

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func sign(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	token, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func claims(more jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "channels": map[string]any{"chat:*": []string{"subscribe", "publish", "history"}}}
	for k, v := range more {
		c[k] = v
	}
	return c
}

func closedEdge(t *testing.T) *world {
	return newWorld(t, func(c *Config) { c.Anonymous = false })
}

func TestTokensThatAreNotGood(t *testing.T) {
	w := closedEdge(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ token, code string }{
		"none at all": {"", "unauthorized"},
		"garbage":     {"x.y.z", "unauthorized"},
		"wrong key":   {sign(t, jwt.SigningMethodHS256, []byte("another secret, as long as the first"), claims(nil)), "unauthorized"},
		"expired":     {sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()})), "expired"},
		"alg none":    {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims(nil)), "unauthorized"},
		"another alg": {sign(t, jwt.SigningMethodRS256, rsaKey, claims(nil)), "unauthorized"},
		"no exp":      {sign(t, jwt.SigningMethodHS256, []byte(testSecret), jwt.MapClaims{"sub": "ann"}), "unauthorized"},
		"exp too far": {sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(jwt.MapClaims{"exp": time.Now().Add(1000 * time.Hour).Unix()})), "unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.connect(fmt.Sprintf(`,"token":%q`, x.token))
			c.t = t
			c.expect(fmt.Sprintf(`{"type":"error","id":1,"code":%q}`, x.code))
			// One more may follow; a second bad one closes.
			c.send(fmt.Sprintf(`{"type":"connect","id":2,"token":%q}`, x.token))
			c.expect(fmt.Sprintf(`{"type":"error","id":2,"code":%q,"close":4100}`, x.code))
			c.expectClose(4100)
		})
	}
}

func TestRightsOfAToken(t *testing.T) {
	w := closedEdge(t)
	token := sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(jwt.MapClaims{"join": []string{"chat:lobby", "user:ann"}}))
	c := w.connect(fmt.Sprintf(`,"token":%q,"subscriptions":[{"channel":"chat:1"},{"channel":"news:1"},{"channel":"user:bob"}]`, token))
	f := c.expect(`{"type":"connected","subscriptions":[
		{"channel":"chat:1","recovered":false},{"channel":"news:1","error":{"code":"forbidden"}},{"channel":"user:bob","error":{"code":"forbidden"}},
		{"channel":"chat:lobby","recovered":false},{"channel":"user:ann","recovered":false}]}`)
	if ms, ok := f["expires_in_ms"].(float64); !ok || ms <= 0 || ms > 3_600_000 {
		t.Errorf("expires_in_ms: %v", f["expires_in_ms"])
	}
	w.publish("user:ann", "1")
	c.expectEvents("user:ann", 1, 1)
	c.send(`{"type":"publish","id":2,"channel":"news:1","data":1}`)
	c.expect(`{"type":"error","id":2,"code":"forbidden"}`)
	c.send(`{"type":"history","id":3,"channel":"news:1","limit":1}`)
	c.expect(`{"type":"error","id":3,"code":"forbidden"}`)
	// New credentials replace the rights at once.
	token = sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(jwt.MapClaims{"channels": map[string]any{"chat:lobby": []string{"subscribe"}}}))
	c.send(fmt.Sprintf(`{"type":"refresh","id":4,"token":%q}`, token))
	c.expect(`{"type":"refreshed","id":4}`)
	c.expect(`{"type":"unsubscribed","channel":"chat:1","error":{"code":"forbidden"}}`)
	c.send(`{"type":"refresh","id":5,"token":"x"}`)
	c.expect(`{"type":"error","id":5,"code":"unauthorized"}`)
}

func TestASessionEndsWithItsToken(t *testing.T) {
	w := closedEdge(t)
	token := sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims(jwt.MapClaims{"exp": time.Now().Add(3 * time.Second).Unix()}))
	c := w.connect(fmt.Sprintf(`,"token":%q`, token))
	c.expect(`{"type":"connected"}`)
	c.expect(`{"type":"error","code":"expired","close":4100}`)
	c.expectClose(4100)
}
