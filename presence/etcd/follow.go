package etcd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
	// listPage bounds one read of a listing.
	listPage = 5_000
)

// follower tells what stands under the keys from first up to end, and what changes
// there, through any absence of etcd. Its functions are called from one goroutine.
type follower struct {
	client     *clientv3.Client
	first, end string
	log        *slog.Logger

	listed func(reason presence.ListReason, all []*mvccpb.KeyValue, revision int64)
	event  func(*clientv3.Event)
}

// run lists, follows, and lists again whenever something may have been missed, until
// ctx ends.
func (f *follower) run(ctx context.Context) {
	reason := presence.ListStart
	for ctx.Err() == nil {
		all, revision, err := f.list(ctx)
		if err == nil {
			f.listed(reason, all, revision)
			reason = f.follow(ctx, revision)
			f.log.Debug("watch ended", "first", f.first, "reason", reason.String())
		} else {
			f.log.Debug("could not list", "first", f.first, "err", err)
		}
		pause(ctx, relistPause)
	}
}

// list reads everything as it was at one revision.
func (f *follower) list(ctx context.Context) (all []*mvccpb.KeyValue, revision int64, err error) {
	for from := f.first; ; {
		resp, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return f.client.Get(ctx, from, clientv3.WithRange(f.end), clientv3.WithLimit(listPage), clientv3.WithRev(revision))
		})
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		all = append(all, resp.Kvs...)
		if !resp.More || len(resp.Kvs) == 0 {
			return all, revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// follow passes on what changes after revision. It returns when something may
// have been missed, and why; or when ctx ends.
func (f *follower) follow(ctx context.Context, revision int64) presence.ListReason {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	lost := make(chan struct{})
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	// It ends with ctx or the connection; follow waits for it.
	wait.Go(func() { f.untilLost(ctx, lost) })
	watch := f.client.Watch(ctx, f.first, clientv3.WithRange(f.end), clientv3.WithRev(revision+1))
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
				f.event(ev)
			}
			revision = max(revision, resp.Header.Revision)
		case <-lost:
			return presence.ListReconnected
		case <-ticker.C:
			now, err := f.probe(ctx)
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
func (f *follower) untilLost(ctx context.Context, lost chan struct{}) {
	if f.client.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
		close(lost)
	}
}

// probe asks for the store's revision, and asks the watch to tell how far it is.
func (f *follower) probe(ctx context.Context) (int64, error) {
	resp, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return f.client.Get(ctx, f.first, clientv3.WithCountOnly())
	})
	if err != nil {
		return 0, err
	}
	_, err = bounded(ctx, readTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f.client.RequestProgress(ctx)
	})
	return resp.Header.Revision, err
}
