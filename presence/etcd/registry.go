package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// DefaultTTL is the life of a lease that nobody renews.
	DefaultTTL = 10 * time.Second
)

// Registry implements presence.Registry. The client is the caller's to close,
// after the Cluster's Run.
type Registry struct {
	client *clientv3.Client
	prefix string
	ttl    time.Duration
	log    *slog.Logger
}

var _ presence.Registry = (*Registry)(nil)

// NewRegistry makes one. prefix is that of the cluster. ttl is
// rounded up to seconds (0: DefaultTTL); it should outlast a reconnect by far. log
// may be nil.
func NewRegistry(client *clientv3.Client, prefix string, ttl time.Duration, log *slog.Logger) *Registry {
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Registry{client: client, prefix: strings.TrimSuffix(prefix, "/"), ttl: ttl, log: log}
}

func (r *Registry) members() string { return r.prefix + "/members/" }

func (r *Registry) key(k presence.Key) string { return r.members() + k.String() }

func (r *Registry) parseKey(key string) (presence.Key, bool) {
	role, id, ok := strings.Cut(strings.TrimPrefix(key, r.members()), "/")
	if !ok || id == "" {
		return presence.Key{}, false
	}
	for _, known := range []gatewayv1.Role{gatewayv1.Role_ROLE_EDGE, gatewayv1.Role_ROLE_ROUTER} {
		if role == presence.RoleName(known) {
			return presence.Key{Role: known, ID: id}, true
		}
	}
	return presence.Key{}, false
}

// decode reads a record; nil: it is not one, or belongs under another key.
func (r *Registry) decode(key string, value []byte) *presence.Member {
	m := new(presence.Member)
	err := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(value, m)
	if k, ok := r.parseKey(key); err != nil || !ok || presence.KeyOf(m) != k {
		r.log.Warn("member record is not readable", "key", key, "err", err)
		return nil
	}
	return m
}

func encode(m *presence.Member) (string, error) {
	value, err := protojson.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode member: %w", err)
	}
	return string(value), nil
}

// step is the time one call of a registration may take, and the time between
// two renewals.
func (r *Registry) step() time.Duration { return r.ttl / 3 }

func bounded[T any](ctx context.Context, d time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return call(ctx)
}

// pause waits between d/2 and d, so that members do not come in step; false: ctx
// ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
