package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/spillway-io/spillway/presence"
)

const (
	// probeEvery is how often the watch is compared with the store: a watch from a
	// revision that a restored store has not reached would wait in silence.
	probeEvery = 5 * time.Second
	// readTimeout bounds one read.
	readTimeout = 3 * time.Second
	// relistPause spreads the listings of many members after etcd's return.
	relistPause = 500 * time.Millisecond
)

// Watch implements presence.Registry.
func (r *Registry) Watch(ctx context.Context, changed func(presence.Change)) error {
	reason := presence.ListStart
	for ctx.Err() == nil {
		revision, err := r.list(ctx, reason, changed)
		if err == nil {
			reason = r.follow(ctx, revision, changed)
			r.log.Debug("member watch ended", "reason", reason.String())
		} else {
			r.log.Debug("could not list members", "err", err)
		}
		pause(ctx, relistPause)
	}
	return nil
}

func (r *Registry) list(ctx context.Context, reason presence.ListReason, changed func(presence.Change)) (int64, error) {
	resp, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return r.client.Get(ctx, r.members(), clientv3.WithPrefix())
	})
	if err != nil {
		return 0, err
	}
	change := presence.Change{Listed: reason, Revision: resp.Header.Revision}
	for _, kv := range resp.Kvs {
		if m := r.decode(string(kv.Key), kv.Value); m != nil {
			change.List = append(change.List, m)
		}
	}
	changed(change)
	return resp.Header.Revision, nil
}

// follow passes on what changes after revision. It returns when something may
// have been missed, and why; or when ctx ends.
func (r *Registry) follow(ctx context.Context, revision int64, changed func(presence.Change)) presence.ListReason {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	lost := make(chan struct{})
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	// It ends with ctx or the connection; follow waits for it.
	wait.Go(func() { r.untilLost(ctx, lost) })
	watch := r.client.Watch(ctx, r.members(), clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	expected := int64(0) // the watch must have come this far by the next probe
	for {
		select {
		case resp, ok := <-watch:
			if !ok {
				return presence.ListBroken
			}
			if err := resp.Err(); err != nil {
				return broken(err)
			}
			for _, ev := range resp.Events {
				r.pass(ev, changed)
			}
			revision = max(revision, resp.Header.Revision)
		case <-lost:
			return presence.ListReconnected
		case <-ticker.C:
			now, err := r.probe(ctx)
			switch {
			case err != nil:
				continue // the watch finds out for itself
			case now < revision:
				return presence.ListWentBack
			case revision < expected:
				return presence.ListStuck
			}
			expected = now
		}
	}
}

func broken(err error) presence.ListReason {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return presence.ListCompacted
	}
	return presence.ListBroken
}

// untilLost closes lost when the connection breaks. clientv3 would go on with the
// watch as if nothing had been, but what comes back may be a restored store, whose
// revisions mean something else.
func (r *Registry) untilLost(ctx context.Context, lost chan struct{}) {
	if r.client.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
		close(lost)
	}
}

// probe asks for the store's revision, and asks the watch to tell how far it is.
func (r *Registry) probe(ctx context.Context) (int64, error) {
	resp, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return r.client.Get(ctx, r.members(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	})
	if err != nil {
		return 0, err
	}
	_, err = bounded(ctx, readTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.client.RequestProgress(ctx)
	})
	return resp.Header.Revision, err
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
