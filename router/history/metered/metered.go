// Package metered counts the calls of a store. The root of the router wraps the store
// that it was given, once; everybody else calls the wrapped one and counts nothing.
package metered

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/history"
)

// Store is a history.Store that counts its calls by kind.
type Store struct {
	history.Store
	append, heads, read, renew, trim, forget, keep prometheus.Counter
}

var _ history.Store = (*Store)(nil)

// New wraps a store. registry may be nil: then the counters are not registered.
func New(store history.Store, registry prometheus.Registerer) *Store {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_router_store_calls_total", Help: "Calls of the store by kind."}, []string{"call"})
	if registry != nil {
		registry.MustRegister(calls)
	}
	return &Store{
		Store: store, append: calls.WithLabelValues("append"), heads: calls.WithLabelValues("heads"), read: calls.WithLabelValues("read"),
		renew: calls.WithLabelValues("renew"), trim: calls.WithLabelValues("trim"), forget: calls.WithLabelValues("forget"),
		keep: calls.WithLabelValues("keep"),
	}
}

// Append counts and calls.
func (s *Store) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	s.append.Inc()
	return s.Store.Append(ctx, runs)
}

// Heads counts and calls.
func (s *Store) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	s.heads.Inc()
	return s.Store.Heads(ctx, queries)
}

// Read counts and calls.
func (s *Store) Read(ctx context.Context, ranges []history.Range) ([]history.Page, error) {
	s.read.Inc()
	return s.Store.Read(ctx, ranges)
}

// Renew counts and calls.
func (s *Store) Renew(ctx context.Context, renewals []history.Renewal) ([]history.Head, error) {
	s.renew.Inc()
	return s.Store.Renew(ctx, renewals)
}

// Trim counts and calls.
func (s *Store) Trim(ctx context.Context, rules []history.Retention, keyWindow time.Duration, limit int) (int, error) {
	s.trim.Inc()
	return s.Store.Trim(ctx, rules, keyWindow, limit)
}

// Forget counts and calls.
func (s *Store) Forget(ctx context.Context, idle time.Duration, limit int) (int, error) {
	s.forget.Inc()
	return s.Store.Forget(ctx, idle, limit)
}

// Keep counts and calls.
func (s *Store) Keep(ctx context.Context, channels []string) error {
	s.keep.Inc()
	return s.Store.Keep(ctx, channels)
}
