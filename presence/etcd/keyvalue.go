package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
)

// KeyValue implements control.KeyValue: records without a lease under <prefix>/<folder>/.
// Its folders are followed by one watch over the smallest range of keys that holds
// them; whatever else stands in it is ignored.
type KeyValue struct {
	client  *clientv3.Client
	prefix  string // ends with '/'
	folders []string
	log     *slog.Logger
}

var _ control.KeyValue = (*KeyValue)(nil)

// NewKeyValue makes one for a cluster's prefix and at least one
// folder. The client is the caller's to close. log may be nil.
func NewKeyValue(client *clientv3.Client, prefix string, folders []string, log *slog.Logger) *KeyValue {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &KeyValue{
		client: client, prefix: strings.TrimSuffix(prefix, "/") + "/", folders: slices.Sorted(slices.Values(folders)), log: log,
	}
}

// Follow implements control.KeyValue.
func (s *KeyValue) Follow(ctx context.Context, changed func(control.Change)) error {
	s.follower(changed).run(ctx)
	return nil
}

func (s *KeyValue) follower(changed func(control.Change)) *follower {
	return &follower{
		client: s.client, log: s.log,
		first: s.prefix + s.folders[0] + "/", end: clientv3.GetPrefixRangeEnd(s.prefix + s.folders[len(s.folders)-1] + "/"),
		listed: func(_ presence.ListReason, all []*mvccpb.KeyValue, revision int64) {
			changed(control.Change{Listed: true, List: s.records(all), Revision: revision})
		},
		event: func(ev *clientv3.Event) {
			name, ours := s.name(ev.Kv.Key)
			switch {
			case !ours:
			case ev.Type == clientv3.EventTypeDelete:
				changed(control.Change{Deleted: name, Revision: ev.Kv.ModRevision})
			default:
				changed(control.Change{Put: &control.Record{Name: name, Value: ev.Kv.Value, Revision: ev.Kv.ModRevision}, Revision: ev.Kv.ModRevision})
			}
		},
	}
}

func (s *KeyValue) records(all []*mvccpb.KeyValue) []control.Record {
	records := make([]control.Record, 0, len(all))
	for _, kv := range all {
		if name, ours := s.name(kv.Key); ours {
			records = append(records, control.Record{Name: name, Value: kv.Value, Revision: kv.ModRevision})
		}
	}
	return records
}

// name is that of a record of one of our folders.
func (s *KeyValue) name(key []byte) (name string, ours bool) {
	name = strings.TrimPrefix(string(key), s.prefix)
	folder, id, found := strings.Cut(name, "/")
	return name, found && id != "" && slices.Contains(s.folders, folder)
}

// List implements control.KeyValue.
func (s *KeyValue) List(ctx context.Context, prefix string) ([]control.Record, int64, error) {
	first := s.prefix + prefix
	f := &follower{client: s.client, first: first, end: clientv3.GetPrefixRangeEnd(first), log: s.log}
	all, revision, err := f.list(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	return s.records(all), revision, nil
}

// Put implements control.KeyValue.
func (s *KeyValue) Put(ctx context.Context, name string, value []byte, cond control.If) (int64, bool, error) {
	key := s.prefix + name
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", cond.Revision)}
	if cond.Quiet != 0 {
		folder, _, _ := strings.Cut(name, "/")
		inside := clientv3.ModRevision(s.prefix + folder + "/").WithPrefix()
		conditions = append(conditions, clientv3.Compare(inside, "<", cond.Quiet+1))
	}
	resp, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, string(value))).Commit()
	})
	if err != nil {
		return 0, false, fmt.Errorf("put %s: %w", name, err)
	}
	return resp.Header.Revision, resp.Succeeded, nil
}

// Delete implements control.KeyValue.
func (s *KeyValue) Delete(ctx context.Context, name string, revision int64) error {
	key := s.prefix + name
	_, err := bounded(ctx, readTimeout, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpDelete(key)).Commit()
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}
