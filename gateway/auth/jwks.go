package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
)

const (
	maxJWKSBytes = 1 << 20
	maxJWKSKeys  = 64
	fetchWithin  = 5 * time.Second
	// minRefetch is the least time between two fetches, whatever tokens name: anybody
	// can make up a kid.
	minRefetch = 10 * time.Second
)

// jwks is the set of keys behind a URL (RFC 7517). jwkset parses it. The fetching is our
// own: keyfunc, the usual library for it, fetches within a verification when it meets an
// unknown kid, so that a handshake would wait for somebody else's server.
type jwks struct {
	// immutable after newJWKS
	url     string
	refresh time.Duration
	client  *http.Client
	log     *slog.Logger
	metrics *metrics

	// atomic; nil until the first answer, then never empty
	keys atomic.Pointer[[]key]

	wanted chan struct{} // an unknown kid was met; holds one
}

func newJWKS(cfg *Config) *jwks {
	j := &jwks{
		url: cfg.JWKSURL, refresh: cfg.JWKSRefresh, log: cfg.Log, metrics: newMetrics(cfg.Registry),
		client: &http.Client{Timeout: fetchWithin}, wanted: make(chan struct{}, 1),
	}
	if j.log == nil {
		j.log = slog.New(slog.DiscardHandler)
	}
	return j
}

// known are the keys of the last good answer. It never waits.
func (j *jwks) known() []key {
	if keys := j.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// ask wants a fetch before its time. It never waits.
func (j *jwks) ask() {
	select {
	case j.wanted <- struct{}{}:
	default:
	}
}

func (j *jwks) run(ctx context.Context) error {
	defer j.client.CloseIdleConnections()
	failures := 0
	for ctx.Err() == nil {
		keys, err := j.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			j.metrics.failed.Inc()
			j.log.Warn("fetch keys", "err", err, "known", len(j.known()))
		default:
			failures = 0
			j.metrics.fetched.Inc()
			j.metrics.keys.Set(float64(len(keys)))
			j.keys.Store(&keys)
		}
		j.pause(ctx, failures)
	}
	return nil
}

// pause waits for the next fetch: the refresh interval, less some jitter, or until
// an unknown kid is met; after failures 1 s doubling to that interval.
func (j *jwks) pause(ctx context.Context, failures int) {
	wait := j.refresh - rand.N(j.refresh/4)
	least := minRefetch
	if failures > 0 {
		wait = min(wait, time.Second<<min(failures-1, 20))
		least = wait
	}
	early := time.NewTimer(least)
	defer early.Stop()
	select {
	case <-ctx.Done():
		return
	case <-early.C:
	}
	rest := time.NewTimer(wait - least)
	defer rest.Stop()
	select {
	case <-ctx.Done():
	case <-rest.C:
	case <-j.wanted:
	}
}

func (j *jwks) fetch(ctx context.Context) ([]key, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := j.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxJWKSBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxJWKSBytes {
		return nil, fmt.Errorf("more than %d bytes", maxJWKSBytes)
	}
	return parseJWKS(text)
}

// parseJWKS takes the keys that tokens can be checked with. Others (symmetric ones,
// for encryption, with another algorithm) are left out. A set without any is an
// error: a mistake there must not lock everybody out.
func parseJWKS(text []byte) ([]key, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", err)
	}
	var keys []key
	for _, m := range set.Keys {
		if m.USE != "" && m.USE != jwkset.UseSig {
			continue
		}
		parsed, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		k, err := publicKey(m.KID, parsed.Key())
		if err != nil || m.ALG != "" && m.ALG.String() != k.method {
			continue
		}
		if keys = append(keys, k); len(keys) > maxJWKSKeys {
			return nil, fmt.Errorf("more than %d keys", maxJWKSKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no key that fits RS256, ES256 or EdDSA")
	}
	return keys, nil
}
