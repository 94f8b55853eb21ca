// Package auth checks the tokens that clients bring: JSON Web Tokens (RFC 7519)
// whose algorithm is fixed by the configured key, never by the token.
//
// Package gateway calls Verify from its pool; it costs CPU only (HS256 4 us, RS256
// 28, EdDSA 41, ES256 53) and asks nobody. A Verifier is immutable and safe for
// concurrent use. Tokens never reach a log or an error text.
//
// Claims: sub (1 to 128 bytes, so that user:<sub> is a channel), exp (required, at
// most MaxTTL away), nbf and iat, jti, channels (a list of patterns, which gives
// subscribe, history and presence; or an object of pattern to a list of rights
// among subscribe, publish, history, presence; a pattern is a channel, or a beginning
// of names and '*'), join (channels joined at connect), tier ("critical"), info.
//
// Left out on purpose: fetching keys over the network (a later version), tickets
// and revocation.
package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// leeway forgives clocks that disagree about nbf and iat. exp is not forgiven.
const leeway = 5 * time.Second

// Config says which tokens are good. At least one key is needed.
type Config struct {
	HS256      []byte             // shared secret, at least 16 bytes
	PublicKeys []crypto.PublicKey // RSA (RS256), ECDSA P-256 (ES256) or Ed25519 (EdDSA)
	MaxTTL     time.Duration      // how far away exp may be; 0: 24 h
}

// Error is a token that is not good, in the client protocol's words.
type Error struct {
	Code    clientv1.ErrorCode // unauthorized, or expired for one that was good
	Message string             // holds nothing of the token
}

func (e *Error) Error() string { return e.Message }

func unauthorized(text string) *Error {
	return &Error{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, text}
}

// Verifier checks tokens.
type Verifier struct {
	keys   []key
	maxTTL time.Duration
}

type key struct {
	method string
	key    any
}

// New makes a Verifier.
func New(cfg Config) (*Verifier, error) {
	v := &Verifier{maxTTL: cfg.MaxTTL}
	if v.maxTTL == 0 {
		v.maxTTL = 24 * time.Hour
	}
	if cfg.HS256 != nil {
		if len(cfg.HS256) < 16 {
			return nil, errors.New("auth: the HS256 secret must have at least 16 bytes")
		}
		v.keys = append(v.keys, key{"HS256", cfg.HS256})
	}
	for _, k := range cfg.PublicKeys {
		switch k := k.(type) {
		case *rsa.PublicKey:
			v.keys = append(v.keys, key{"RS256", k})
		case ed25519.PublicKey:
			v.keys = append(v.keys, key{"EdDSA", k})
		case *ecdsa.PublicKey:
			if k.Curve != elliptic.P256() {
				return nil, errors.New("auth: an ECDSA key must be on P-256")
			}
			v.keys = append(v.keys, key{"ES256", k})
		default:
			return nil, fmt.Errorf("auth: a key of type %T is none of RSA, ECDSA, Ed25519", k)
		}
	}
	if len(v.keys) == 0 {
		return nil, errors.New("auth: no key to check tokens with")
	}
	return v, nil
}

// ParsePublicKeys reads the public keys of a PEM file.
func ParsePublicKeys(text []byte) ([]crypto.PublicKey, error) {
	var keys []crypto.PublicKey
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("public key %d: %w", len(keys)+1, err)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("holds no PEM public key")
	}
	return keys, nil
}

// payload is the claims as they stand in a token.
type payload struct {
	jwt.RegisteredClaims
	Channels json.RawMessage `json:"channels"`
	Join     []string        `json:"join"`
	Tier     string          `json:"tier"`
	Info     json.RawMessage `json:"info"`
}

// Verify checks a token at a moment. Its error is an *Error.
func (v *Verifier) Verify(token string, now time.Time) (*Claims, error) {
	if len(token) > MaxTokenBytes {
		return nil, unauthorized("the token is too large")
	}
	p, err := v.parse(token, now)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, &Error{clientv1.ErrorCode_ERROR_CODE_EXPIRED, "the token has expired"}
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return nil, unauthorized("the token must say exp")
	case err != nil:
		return nil, unauthorized("the token is not good")
	}
	return v.claims(p, now)
}

// parse tries each key with its own algorithm. A good signature decides, also
// when the token has expired.
func (v *Verifier) parse(token string, now time.Time) (*payload, error) {
	var last error
	for _, k := range v.keys {
		p := new(payload)
		parser := jwt.NewParser(jwt.WithValidMethods([]string{k.method}), jwt.WithExpirationRequired(),
			jwt.WithTimeFunc(func() time.Time { return now }), jwt.WithLeeway(0), jwt.WithoutClaimsValidation())
		_, err := parser.ParseWithClaims(token, p, func(*jwt.Token) (any, error) { return k.key, nil })
		if err == nil {
			return p, checkTimes(p, now)
		}
		last = err
	}
	return nil, last
}

func checkTimes(p *payload, now time.Time) error {
	switch {
	case p.ExpiresAt == nil:
		return jwt.ErrTokenRequiredClaimMissing
	case !now.Before(p.ExpiresAt.Time):
		return jwt.ErrTokenExpired
	case p.NotBefore != nil && now.Add(leeway).Before(p.NotBefore.Time),
		p.IssuedAt != nil && now.Add(leeway).Before(p.IssuedAt.Time):
		return jwt.ErrTokenNotValidYet
	}
	return nil
}

func (v *Verifier) claims(p *payload, now time.Time) (*Claims, error) {
	switch {
	case p.ExpiresAt.Sub(now) > v.maxTTL:
		return nil, unauthorized("the token lives longer than is allowed")
	case p.Subject == "" || len(p.Subject) > MaxSubjectBytes || wire.CheckChannel(wire.UserChannel(p.Subject)) != nil:
		return nil, unauthorized("sub: must be 1 to 128 bytes of UTF-8 without control characters")
	case len(p.Join) > MaxJoin:
		return nil, unauthorized("join: too many channels")
	}
	c := &Claims{
		Subject: p.Subject, Expires: p.ExpiresAt.Time, ID: p.ID, Join: p.Join,
		Critical: p.Tier == "critical", Info: p.Info, own: wire.UserChannel(p.Subject),
	}
	if p.IssuedAt != nil {
		c.IssuedAt = p.IssuedAt.Time
	}
	if err := c.channels(p.Channels); err != nil {
		return nil, unauthorized(err.Error())
	}
	return c, nil
}

// Mint makes an HS256 token, for `spillway token` and tests. rights is the claim
// channels: pattern to rights, or nil.
func Mint(secret []byte, sub string, rights map[string][]string, join []string, ttl time.Duration, now time.Time) (string, error) {
	claims := jwt.MapClaims{"sub": sub, "iat": now.Unix(), "exp": now.Add(ttl).Unix()}
	if len(rights) > 0 {
		claims["channels"] = rights
	}
	if len(join) > 0 {
		claims["join"] = join
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}
