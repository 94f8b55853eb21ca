// Package auth checks the tokens that clients bring: JSON Web Tokens (RFC 7519)
// whose algorithm is fixed by the configured key, never by the token.
//
// Package gateway calls Verify from its pool; it costs CPU only (HS256 4 us, RS256
// 28, EdDSA 41, ES256 53 and more with each key tried) and asks nobody. Verify is safe
// for concurrent use. Tokens never reach a log or an error text.
//
// Keys are given (a secret, public keys) or come from a JWKS URL, which Run, the one
// goroutine, reads in the background: before the first answer tokens are refused as
// unavailable, later an issuer that cannot be reached changes nothing. A token
// that names a key (kid) is checked with that key, else with those of its
// algorithm, maxTries at most.
//
// Claims: sub (1 to 128 bytes, so that user:<sub> is a channel), exp (required, at
// most MaxTTL away), nbf and iat, jti, channels (a list of patterns, which gives
// subscribe, history and presence; or an object of pattern to a list of rights
// among subscribe, publish, history, presence), join (channels joined at connect,
// to be read as those of a list), tier ("critical"), info. A pattern is the name of
// a channel, or a beginning of names followed by '*', which stands for the rest
// whatever it is, colons too; a '*' elsewhere is a letter like others.
//
// Invariants: a key is used with its own algorithm only; a token is called expired
// only if nothing else is wrong with it; whoever has a token may read user:<sub>,
// and another user's channel only by a name or pattern that begins with "user:".
//
// AppendRights and Restore carry claims through a ticket (package ticket).
//
// Left out on purpose: aud and iss, revocation.
package auth

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/proto/schema"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// leeway forgives clocks that disagree about nbf and iat. exp is not forgiven.
const leeway = 5 * time.Second

// Config says which tokens are good. At least one key, or JWKSURL, is needed.
type Config struct {
	HS256      []byte                      // shared secret, at least 16 bytes
	PublicKeys []crypto.PublicKey          // RSA (RS256), ECDSA P-256 (ES256) or Ed25519 (EdDSA)
	NamedKeys  map[string]crypto.PublicKey // by kid: tried for tokens that name it, or none

	// Zero times mean their defaults. With a JWKSURL Run must be called.
	JWKSURL     string        `key:"jwks_url" rule:"a URL with http:// or https://" zero:"none" example:"https://issuer.example.com/.well-known/jwks.json" doc:"The keys of a token issuer are read from here, in the background."`
	JWKSRefresh time.Duration `key:"jwks_refresh" default:"5m" rule:"at least 10s" doc:"The keys are read again so often."`
	MaxTTL      time.Duration `key:"max_ttl" default:"24h" rule:"above 0s" doc:"A token may have so long to live at most."`

	Log      *slog.Logger // of fetches; nil: none
	Registry prometheus.Registerer
}

// Error is a token that is not good, in the client protocol's words.
type Error struct {
	Code    clientv1.ErrorCode // unauthorized; expired: was good; unavailable: no keys yet
	Message string             // holds nothing of the token
}

func (e *Error) Error() string { return e.Message }

func unauthorized(text string) *Error {
	return &Error{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, text}
}

// Verifier checks tokens.
type Verifier struct {
	// immutable after New
	keys   []key
	maxTTL time.Duration
	jwks   *jwks // nil: no JWKSURL
}

// New makes a Verifier. It does no I/O.
func New(cfg Config) (*Verifier, error) {
	schema.FillZero(&cfg)
	if err := schema.Validate(&cfg); err != nil {
		return nil, err
	}
	v := &Verifier{maxTTL: cfg.MaxTTL}
	if err := v.addKeys(&cfg); err != nil {
		return nil, err
	}
	if cfg.JWKSURL != "" {
		v.jwks = newJWKS(&cfg)
	}
	if len(v.keys) == 0 && v.jwks == nil {
		return nil, errors.New("auth: no key to check tokens with")
	}
	return v, nil
}

// Run keeps the keys of the JWKS URL fresh until ctx ends, and returns nil. Without
// a URL there is nothing to do but to wait.
func (v *Verifier) Run(ctx context.Context) error {
	if v.jwks == nil {
		<-ctx.Done()
		return nil
	}
	return v.jwks.run(ctx)
}

// Ready says that there are keys: at once, or with a JWKS URL alone after its first answer.
func (v *Verifier) Ready() bool {
	return len(v.keys) > 0 || v.jwks.keys.Load() != nil
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
	p, err := v.parse(token)
	if err != nil {
		return nil, err
	}
	c, err := v.claims(p, now)
	if err != nil {
		return nil, err
	}
	if !now.Before(c.Expires) {
		return nil, &Error{clientv1.ErrorCode_ERROR_CODE_EXPIRED, "the token has expired"}
	}
	return c, nil
}

// parse looks for a key under which the signature is good. The header's alg and kid
// choose among the keys there are and say nothing about how they are used.
func (v *Verifier) parse(token string) (*payload, error) {
	alg, kid := parseHeader(token)
	tries := 0
	for k := range v.candidates(alg, kid) {
		if tries++; tries > maxTries {
			break
		}
		p := new(payload)
		if _, err := parsers[k.method].ParseWithClaims(token, p, func(*jwt.Token) (any, error) { return k.key, nil }); err == nil {
			return p, nil
		}
	}
	if !v.Ready() {
		return nil, &Error{clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "the keys that tokens are checked with are not known yet"}
	}
	if tries == 0 && kid != "" && v.jwks != nil {
		v.jwks.ask()
	}
	return nil, unauthorized("the token is not good")
}

// claims checks all but the expiry, which is looked at last.
func (v *Verifier) claims(p *payload, now time.Time) (*Claims, error) {
	switch {
	case p.ExpiresAt == nil:
		return nil, unauthorized("the token must say exp")
	case p.ExpiresAt.Sub(now) > v.maxTTL:
		return nil, unauthorized("the token lives longer than is allowed")
	case p.NotBefore != nil && now.Add(leeway).Before(p.NotBefore.Time),
		p.IssuedAt != nil && now.Add(leeway).Before(p.IssuedAt.Time):
		return nil, unauthorized("the token is not valid yet")
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
	for _, channel := range p.Join {
		if wire.CheckChannel(channel) != nil {
			return nil, unauthorized("join: holds what is no channel's name")
		}
		c.grantExact(channel, Read)
	}
	return c, nil
}
