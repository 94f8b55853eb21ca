package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// TokenProvider gives a token for connect. It is asked before the very first
// connect, when a server refused the token at hand, and before that ends (at 50 to
// 80 % of its life); never twice at a time, never by the rhythm of reconnects.
// ErrNoToken (or "") ends the client; any other error is tried again, backing off.
type TokenProvider func(ctx context.Context) (string, error)

// Dialer opens the byte stream below the WebSocket (below TLS, for wss).
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

type settings struct {
	urls     []string
	provider TokenProvider
	header   http.Header
	dial     Dialer
	tls      *tls.Config
	log      *slog.Logger
	name     string
	random   func(time.Duration) time.Duration
	onState  func(StateChange)
	onMove   func(Move)
	joined   func(channel string) Handler
}

// Option changes a client that New makes.
type Option func(*settings)

// WithURLs adds more WebSocket URLs (regions). One is left after 3 failures and 10 s
// without any answer.
func WithURLs(urls ...string) Option {
	return func(s *settings) { s.urls = append(s.urls, urls...) }
}

// WithToken sets who gives tokens. Without it the client connects anonymously.
func WithToken(p TokenProvider) Option { return func(s *settings) { s.provider = p } }

// WithHTTPHeader sends these with every handshake, at edges that a server named too.
func WithHTTPHeader(h http.Header) Option { return func(s *settings) { s.header = h.Clone() } }

// WithDialer replaces net.Dialer, for proxies and for tests in memory.
func WithDialer(d Dialer) Option { return func(s *settings) { s.dial = d } }

// WithTLSConfig is for wss.
func WithTLSConfig(c *tls.Config) Option { return func(s *settings) { s.tls = c } }

// WithLogger: connections at Debug, panics of callbacks and odd servers at Warn.
// Without it nothing is logged.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// WithName tells servers who connects ("acme-sync/2.1"), for their logs.
func WithName(name string) Option { return func(s *settings) { s.name = name } }

// WithRandom replaces the source of all jitter: uniform in [0, d). It is called
// under the client's lock.
func WithRandom(f func(d time.Duration) time.Duration) Option {
	return func(s *settings) { s.random = f }
}

// WithOnState is called, like other callbacks, at every change of state and after
// every failed attempt.
func WithOnState(f func(StateChange)) Option { return func(s *settings) { s.onState = f } }

// WithOnMove is called, like other callbacks, after every finished move to another
// edge and after every attempt at one that failed.
func WithOnMove(f func(Move)) Option { return func(s *settings) { s.onMove = f } }

// WithJoined makes handlers for channels that the token joins and Subscribe did not
// name. Without it their events are dropped.
func WithJoined(f func(channel string) Handler) Option { return func(s *settings) { s.joined = f } }

func newSettings(first string, opts []Option) (*settings, error) {
	s := &settings{
		urls: []string{first}, name: "spillway-go", log: slog.New(slog.DiscardHandler), dial: (&net.Dialer{}).DialContext,
		random: func(d time.Duration) time.Duration { return time.Duration(rand.Int64N(max(int64(d), 1))) },
	}
	for _, o := range opts {
		o(s)
	}
	for _, u := range s.urls {
		if err := machine.CheckURL(u); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// SubscribeOption says where a subscription begins. Without one it begins with the
// next event.
type SubscribeOption func(*Subscription)

// Since begins after this event, the last one that the application has.
func Since(epoch string, offset uint64) SubscribeOption {
	return func(s *Subscription) { s.sub.Since(Position{Epoch: epoch, Offset: offset}) }
}

// Last begins with the newest n events.
func Last(n uint32) SubscribeOption { return func(s *Subscription) { s.sub.Last(n) } }
