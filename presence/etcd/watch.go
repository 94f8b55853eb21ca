package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"crypto/tls"
	"go.uber.org/zap"

	"github.com/spillway-io/spillway/presence"
)

// NewClient dials etcd lazily and for ever: it never gives up, and tries about
// every second.
func NewClient(endpoints []string, tlsConfig *tls.Config) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		TLS:                  tlsConfig,
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		},
	})
}

// probe is how often the watch asks for the store's revision: a watch from a
// revision that a restored store has not reached would wait in silence.
const probe = 5 * time.Second

// Watch implements presence.Registry.
func (r *Registry) Watch(ctx context.Context, changed func(presence.Change)) error {
	for ctx.Err() == nil {
		revision, err := r.list(ctx, changed)
		if err == nil {
			r.follow(ctx, revision, changed)
		} else {
			r.log.Debug("list members", "err", err)
		}
		if !pause(ctx, 500*time.Millisecond) {
			break
		}
	}
	return nil
}

func (r *Registry) list(ctx context.Context, changed func(presence.Change)) (int64, error) {
	resp, err := bounded(ctx, 3*time.Second, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return r.client.Get(ctx, r.members(), clientv3.WithPrefix())
	})
	if err != nil {
		return 0, err
	}
	change := presence.Change{Listed: true, Revision: resp.Header.Revision}
	for _, kv := range resp.Kvs {
		if m := r.decode(string(kv.Key), kv.Value); m != nil {
			change.List = append(change.List, m)
		}
	}
	changed(change)
	return resp.Header.Revision, nil
}

// follow passes on what changes after revision, until the watch breaks (a
// compaction), the store's revision went back, or ctx ends.
func (r *Registry) follow(ctx context.Context, revision int64, changed func(presence.Change)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := r.client.Watch(ctx, r.members(), clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	ticker := time.NewTicker(probe)
	defer ticker.Stop()
	for {
		select {
		case resp, ok := <-watch:
			if !ok || resp.Err() != nil {
				return
			}
			for _, ev := range resp.Events {
				r.pass(ev, changed)
			}
			revision = max(revision, resp.Header.Revision)
		case <-ticker.C:
			resp, err := bounded(ctx, 3*time.Second, func(ctx context.Context) (*clientv3.GetResponse, error) {
				return r.client.Get(ctx, r.members(), clientv3.WithPrefix(), clientv3.WithCountOnly())
			})
			if err == nil && resp.Header.Revision < revision {
				return
			}
		}
	}
}

func (r *Registry) pass(ev *clientv3.Event, changed func(presence.Change)) {
	key, ok := r.parseKey(string(ev.Kv.Key))
	if !ok {
		return
	}
	if ev.Type == clientv3.EventTypeDelete {
		changed(presence.Change{Deleted: &key, Revision: ev.Kv.ModRevision})
		return
	}
	if m := r.decode(string(ev.Kv.Key), ev.Kv.Value); m != nil {
		changed(presence.Change{Put: m, Revision: ev.Kv.ModRevision})
	}
}
