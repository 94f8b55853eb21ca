package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/spillway-io/spillway/presence"
)

// Watch implements presence.Registry.
func (r *Registry) Watch(ctx context.Context, changed func(presence.Change)) error {
	r.follower(changed).run(ctx)
	return nil
}

func (r *Registry) follower(changed func(presence.Change)) *follower {
	return &follower{
		client: r.client, first: r.members(), end: clientv3.GetPrefixRangeEnd(r.members()), log: r.log,
		listed: func(reason presence.ListReason, all []*mvccpb.KeyValue, revision int64) {
			change := presence.Change{Listed: reason, Revision: revision}
			for _, kv := range all {
				if m := r.decode(string(kv.Key), kv.Value); m != nil {
					change.List = append(change.List, m)
				}
			}
			changed(change)
		},
		event: func(ev *clientv3.Event) { r.pass(ev, changed) },
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
