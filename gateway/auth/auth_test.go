package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

var (
	now    = time.Unix(1_800_000_000, 0)
	secret = []byte("a secret of thirty-two characters")
)

func sign(t testing.TB, method jwt.SigningMethod, key any, change func(jwt.MapClaims)) string {
	t.Helper()
	c := jwt.MapClaims{"sub": "ann", "exp": now.Add(time.Hour).Unix()}
	if change != nil {
		change(c)
	}
	token, err := jwt.NewWithClaims(method, c).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func verifier(t testing.TB, cfg Config) *Verifier {
	t.Helper()
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func codeOf(err error) clientv1.ErrorCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestEachAlgorithmIsFixedByItsKey(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{
		"HS256": sign(t, jwt.SigningMethodHS256, secret, nil),
		"RS256": sign(t, jwt.SigningMethodRS256, rsaKey, nil),
		"ES256": sign(t, jwt.SigningMethodES256, ecKey, nil),
		"EdDSA": sign(t, jwt.SigningMethodEdDSA, edKey, nil),
	}
	verifiers := map[string]*Verifier{
		"HS256": verifier(t, Config{HS256: secret}),
		"RS256": verifier(t, Config{PublicKeys: []crypto.PublicKey{&rsaKey.PublicKey}}),
		"ES256": verifier(t, Config{PublicKeys: []crypto.PublicKey{&ecKey.PublicKey}}),
		"EdDSA": verifier(t, Config{PublicKeys: []crypto.PublicKey{edPublic}}),
	}
	for by, v := range verifiers {
		for alg, token := range tokens {
			if _, err := v.Verify(token, now); (err == nil) != (by == alg) {
				t.Errorf("a key for %s and a token of %s: %v", by, alg, err)
			}
		}
	}
	// The public key's text as an HMAC secret: the classic confusion.
	der, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if _, err := verifiers["RS256"].Verify(sign(t, jwt.SigningMethodHS256, text, nil), now); codeOf(err) != clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED {
		t.Errorf("HS256 under the RSA key: %v", err)
	}
	if keys, err := ParsePublicKeys(text); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

func TestTokensThatAreNotGoodSayWhy(t *testing.T) {
	v := verifier(t, Config{HS256: secret})
	expired, unauthorized := clientv1.ErrorCode_ERROR_CODE_EXPIRED, clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED
	set := func(name string, value any) func(jwt.MapClaims) { return func(c jwt.MapClaims) { c[name] = value } }
	hs := jwt.SigningMethodHS256
	for name, x := range map[string]struct {
		token string
		code  clientv1.ErrorCode
	}{
		"expired":               {sign(t, hs, secret, set("exp", now.Unix())), expired},
		"expired and wrong key": {sign(t, hs, []byte("x"), set("exp", now.Unix())), unauthorized},
		"alg none":              {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil), unauthorized},
		"HS384":                 {sign(t, jwt.SigningMethodHS384, secret, nil), unauthorized},
		"no exp":                {sign(t, hs, secret, func(c jwt.MapClaims) { delete(c, "exp") }), unauthorized},
		"exp too far":           {sign(t, hs, secret, set("exp", now.Add(25*time.Hour).Unix())), unauthorized},
		"not yet":               {sign(t, hs, secret, set("nbf", now.Add(time.Minute).Unix())), unauthorized},
		"no sub":                {sign(t, hs, secret, set("sub", "")), unauthorized},
		"expired and no sub":    {sign(t, hs, secret, func(c jwt.MapClaims) { c["sub"], c["exp"] = "", now.Unix() }), unauthorized},
		"exp of text":           {sign(t, hs, secret, set("exp", "tomorrow")), unauthorized},
		"exp beyond numbers":    {sign(t, hs, secret, set("exp", 1e300)), 0},
		"issued in the future":  {sign(t, hs, secret, set("iat", now.Add(time.Minute).Unix())), unauthorized},
		"too many to join":      {sign(t, hs, secret, set("join", make([]string, MaxJoin+1))), unauthorized},
		"join of no name":       {sign(t, hs, secret, set("join", []string{"a\x00b"})), unauthorized},
		"too many patterns":     {sign(t, hs, secret, set("channels", strings.Split(strings.Repeat("x,", MaxPatterns)+"x", ","))), unauthorized},
		"sub of a line":         {sign(t, hs, secret, set("sub", "a\nb")), unauthorized},
		"sub too long":          {sign(t, hs, secret, set("sub", strings.Repeat("x", 129))), unauthorized},
		"unknown right":         {sign(t, hs, secret, set("channels", map[string]any{"a": []string{"fly"}})), unauthorized},
		"channels of numbers":   {sign(t, hs, secret, set("channels", 5)), unauthorized},
		"huge":                  {strings.Repeat("x", MaxTokenBytes+1), unauthorized},
		"empty":                 {"", unauthorized},
		"garbage":               {"a.b.c", unauthorized},
	} {
		_, err := v.Verify(x.token, now)
		if code := codeOf(err); code == 0 || x.code != 0 && code != x.code {
			t.Errorf("%s: %v, want %v", name, err, x.code)
		}
	}
}

func TestPatterns(t *testing.T) {
	v := verifier(t, Config{HS256: secret})
	c, err := v.Verify(sign(t, jwt.SigningMethodHS256, secret, func(c jwt.MapClaims) {
		c["channels"] = map[string][]string{"chat:*": {"subscribe", "publish"}, "news": {"history"}, "*": {"presence"}}
	}), now)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		channel string
		right   Right
		want    bool
	}{
		{"chat:1", Subscribe, true}, {"chat:1", Publish, true}, {"chat:1", History, false}, {"chat", Subscribe, false},
		{"news", History, true}, {"news:1", History, false}, {"news", Subscribe, false}, {"other", Presence, true},
		{"user:ann", Subscribe, true}, {"user:ann", History, true}, {"user:ann", Publish, false},
		{"user:bob", Subscribe, false}, {"user:bob", Presence, false},
	} {
		if got := c.Allows(x.channel, x.right); got != x.want {
			t.Errorf("%s right %d: %v", x.channel, x.right, got)
		}
	}
	if c, err = v.Verify(sign(t, jwt.SigningMethodHS256, secret, func(c jwt.MapClaims) { c["channels"] = []string{"chat:*"} }), now); err != nil || !c.Allows("chat:1", History) || c.Allows("chat:1", Publish) {
		t.Errorf("a list gives reading only: %v", err)
	}
	if a := Anonymous(); !a.Allows("user:bob", Subscribe) || !a.Allows("x", Publish) {
		t.Error("anonymous clients of dev mode may everything")
	}
}

func TestWhatATokenJoinsMayBeRead(t *testing.T) {
	v := verifier(t, Config{HS256: secret})
	c, err := v.Verify(sign(t, jwt.SigningMethodHS256, secret, func(c jwt.MapClaims) {
		c["join"], c["tier"], c["info"], c["jti"] = []string{"chat:7", "user:bob"}, "critical", map[string]any{"n": 1}, "t1"
	}), now)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Allows("chat:7", Subscribe) || !c.Allows("user:bob", History) || c.Allows("chat:7", Publish) || c.Allows("chat:8", Subscribe) {
		t.Error("join gives reading of what it names, and no more")
	}
	if !c.Critical || string(c.Info) != `{"n":1}` || c.ID != "t1" {
		t.Errorf("%+v", c)
	}
}

func TestPublicKeysOfOtherSizesAreRefused(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []crypto.PublicKey{&small.PublicKey, &other.PublicKey, "text"} {
		if _, err := New(Config{PublicKeys: []crypto.PublicKey{k}}); err == nil {
			t.Errorf("%T was taken", k)
		}
	}
	for _, cfg := range []Config{{}, {HS256: []byte("short")}, {JWKSURL: "ftp://x/"}, {JWKSURL: "https://x/", JWKSRefresh: time.Second}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestMintedTokensAreGood(t *testing.T) {
	token, err := Mint(secret, "ann", map[string][]string{"chat:*": {"subscribe"}}, []string{"chat:1"}, time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	c, err := verifier(t, Config{HS256: secret}).Verify(token, now)
	if err != nil || c.Subject != "ann" || len(c.Join) != 1 || !c.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v, %v", c, err)
	}
}

func FuzzVerify(f *testing.F) {
	v := verifier(f, Config{HS256: secret})
	f.Add(sign(f, jwt.SigningMethodHS256, secret, nil))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := v.Verify(token, now); (c == nil) != (err != nil) || err != nil && codeOf(err) == 0 {
			t.Fatalf("%v, %v", c, err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	edPublic, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range []struct {
		method jwt.SigningMethod
		key    any
		cfg    Config
	}{
		{jwt.SigningMethodHS256, secret, Config{HS256: secret}},
		{jwt.SigningMethodRS256, rsaKey, Config{PublicKeys: []crypto.PublicKey{&rsaKey.PublicKey}}},
		{jwt.SigningMethodES256, ecKey, Config{PublicKeys: []crypto.PublicKey{&ecKey.PublicKey}}},
		{jwt.SigningMethodEdDSA, edKey, Config{PublicKeys: []crypto.PublicKey{edPublic}}},
	} {
		b.Run(x.method.Alg(), func(b *testing.B) {
			v, token := verifier(b, x.cfg), sign(b, x.method, x.key, nil)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(token, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
