package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func edJWK(kid string, k ed25519.PublicKey) string {
	return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":%q,"x":%q}`, kid, b64(k))
}

func ecJWK(t *testing.T, kid string, k *ecdsa.PublicKey) string {
	t.Helper()
	raw, err := k.Bytes() // 0x04, x, y
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"kty":"EC","crv":"P-256","kid":%q,"x":%q,"y":%q}`, kid, b64(raw[1:33]), b64(raw[33:]))
}

func jwkSet(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func withKid(t *testing.T, kid string, key ed25519.PrivateKey) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "ann", "exp": now.Add(time.Hour).Unix()})
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// issuer answers fetches; "" makes them fail.
type issuer struct {
	mu      sync.Mutex
	body    string
	fetches int
}

func (i *issuer) say(body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.body = body
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

func (i *issuer) RoundTrip(*http.Request) (*http.Response, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fetches++
	if i.body == "" {
		return nil, errors.New("nobody there")
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(i.body))}, nil
}

// behindURL runs a verifier whose keys come from an issuer, in a bubble.
func behindURL(t *testing.T, test func(v *Verifier, i *issuer)) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		v := verifier(t, Config{JWKSURL: "https://issuer.example/keys"})
		v.jwks.client.Transport = i
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		// Ends with ctx; waited for below.
		go func() { done <- v.Run(ctx) }()
		test(v, i)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAnIssuerThatIsAwayNeverStopsKnownKeys(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token := withKid(t, "k1", private)
	behindURL(t, func(v *Verifier, i *issuer) {
		synctest.Wait()
		if _, err := v.Verify(token, now); codeOf(err) != clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE || v.Ready() {
			t.Errorf("no keys yet: %v", err)
		}
		i.say(jwkSet(edJWK("k1", public)))
		time.Sleep(10 * time.Second)
		if _, err := v.Verify(token, now); err != nil || !v.Ready() {
			t.Errorf("fetched: %v", err)
		}
		for _, body := range []string{"", "not JSON", `{"keys":[]}`, strings.Repeat(" ", maxJWKSBytes+1)} {
			i.say(body)
			time.Sleep(time.Hour)
			if _, err := v.Verify(token, now); err != nil {
				t.Errorf("after an hour of %.20q: %v", body, err)
			}
		}
	})
}

func TestAnUnknownKeyIsLookedForButNotByEveryToken(t *testing.T) {
	public1, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public2, private2, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	behindURL(t, func(v *Verifier, i *issuer) {
		i.say(jwkSet(edJWK("k1", public1)))
		time.Sleep(15 * time.Second)
		i.say(jwkSet(edJWK("k1", public1), edJWK("k2", public2)))
		before, token := i.count(), withKid(t, "k2", private2)
		if _, err := v.Verify(token, now); codeOf(err) != clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED {
			t.Errorf("not known yet: %v", err)
		}
		synctest.Wait()
		if _, err := v.Verify(token, now); err != nil || i.count() != before+1 {
			t.Errorf("%v after %d fetches", err, i.count()-before)
		}
		for range 100 {
			if _, err := v.Verify(withKid(t, "made-up", private2), now); err == nil {
				t.Error("a made-up kid is good")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := i.count() - before; n > 3 {
			t.Errorf("%d fetches in 10 s of made-up kids", n)
		}
	})
}

func TestKeysThatDoNotFitAreLeftOut(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := parseJWKS([]byte(jwkSet(
		ecJWK(t, "ec", &ec.PublicKey), edJWK("ed", public),
		`{"kty":"oct","kid":"shared","k":"c2VjcmV0"}`,
		strings.Replace(edJWK("enc", public), `"sig"`, `"enc"`, 1),
		strings.Replace(edJWK("alg", public), `"EdDSA"`, `"RS512"`, 1),
		`{"kty":"RSA","kid":"broken"}`,
	)))
	if err != nil || len(keys) != 2 || keys[0].id != "ec" || keys[0].method != "ES256" || keys[1].method != "EdDSA" {
		t.Errorf("%+v, %v", keys, err)
	}
}

func TestATokenIsCheckedWithTheKeyItNames(t *testing.T) {
	public1, private1, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public2, private2, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	v := verifier(t, Config{NamedKeys: map[string]crypto.PublicKey{"k1": public1, "k2": public2}})
	for name, x := range map[string]struct {
		token string
		good  bool
	}{
		"its own":      {withKid(t, "k1", private1), true},
		"the other's":  {withKid(t, "k1", private2), false},
		"none":         {sign(t, jwt.SigningMethodEdDSA, private2, nil), true},
		"unknown":      {withKid(t, "k3", private1), false},
		"second's own": {withKid(t, "k2", private2), true},
	} {
		if _, err := v.Verify(x.token, now); (err == nil) != x.good {
			t.Errorf("kid %s: %v", name, err)
		}
	}
}

func FuzzParseJWKS(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if keys, err := parseJWKS(text); (err == nil) != (len(keys) > 0) {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
	})
}
