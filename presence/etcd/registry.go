// Package etcd keeps member records in etcd: presence.Registry over clientv3.
//
// Records lie under <prefix>/members/<role>/<id> as protobuf JSON, so that
// `etcdctl get --prefix` is readable. All waits are bounded; the client reconnects
// within three seconds (with gRPC's default of up to 120, 75 seconds without etcd
// emptied a list of thirty members after its return).
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// DefaultTTL is the life of a lease that nobody keeps.
const DefaultTTL = 10 * time.Second

// leaveTime bounds the farewell of a member that stops.
const leaveTime = 2 * time.Second

// Registry implements presence.Registry.
type Registry struct {
	client *clientv3.Client
	prefix string
	ttl    time.Duration
	log    *slog.Logger
}

var _ presence.Registry = (*Registry)(nil)

// NewRegistry makes one; prefix is that of the cluster ("/spillway/c1"), ttl is
// rounded up to seconds (0: DefaultTTL). It should outlast a reconnect by far:
// an etcd that comes back gives every lease its whole life once more.
func NewRegistry(client *clientv3.Client, prefix string, ttl time.Duration, log *slog.Logger) *Registry {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Registry{client: client, prefix: strings.TrimSuffix(prefix, "/"), ttl: ttl, log: log}
}

func (r *Registry) members() string { return r.prefix + "/members/" }

func (r *Registry) key(k presence.Key) string {
	return r.members() + presence.RoleName(k.Role) + "/" + k.ID
}

func (r *Registry) parseKey(key string) (presence.Key, bool) {
	role, id, ok := strings.Cut(strings.TrimPrefix(key, r.members()), "/")
	switch {
	case !ok || id == "":
		return presence.Key{}, false
	case role == presence.RoleName(gatewayv1.Role_ROLE_EDGE):
		return presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id}, true
	case role == presence.RoleName(gatewayv1.Role_ROLE_ROUTER):
		return presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id}, true
	}
	return presence.Key{}, false
}

func (r *Registry) decode(key string, value []byte) *presence.Member {
	m := new(presence.Member)
	k, ok := r.parseKey(key)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, m); err != nil || !ok || presence.KeyOf(m) != k {
		r.log.Warn("member record is not readable", "key", key, "err", err)
		return nil
	}
	return m
}

// step is the time one call may take, and the pause between tries.
func (r *Registry) step() time.Duration { return r.ttl / 3 }

// pause waits a spread moment before the next try; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// registration is one stay of a member.
type registration struct {
	*Registry
	self  func() *presence.Member
	lease clientv3.LeaseID
	had   bool // a record was written
	key   string
}

// Register implements presence.Registry.
func (r *Registry) Register(ctx context.Context, self func() *presence.Member, update <-chan struct{}, registered, lost func()) error {
	reg := &registration{Registry: r, self: self, key: r.key(presence.KeyOf(self()))}
	for ctx.Err() == nil {
		err := reg.join(ctx)
		if errors.Is(err, presence.ErrDuplicate) {
			return fmt.Errorf("%w: %s %q", err, presence.RoleName(self().Role), self().Id)
		}
		if err != nil {
			r.log.Debug("register member", "err", err)
			if !pause(ctx, min(time.Second, r.step())) {
				break
			}
			continue
		}
		reg.had = true
		registered()
		reg.keep(ctx, update)
		if ctx.Err() == nil {
			lost()
		}
	}
	reg.leave()
	return nil
}

// join takes a lease and writes the record under it, unless another live
// process has the id. A dead predecessor's lease is waited for: its remaining life
// only falls, and it is gone after a TTL.
func (reg *registration) join(ctx context.Context) error {
	grant, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return reg.client.Grant(ctx, int64((reg.ttl+time.Second-1)/time.Second))
	})
	if err != nil {
		return fmt.Errorf("grant lease: %w", err)
	}
	reg.lease = grant.ID
	least, patience := int64(math.MaxInt64), time.Now().Add(reg.ttl+2*time.Second)
	for {
		holder, err := reg.claim(ctx)
		if err != nil || holder == clientv3.NoLease {
			return err
		}
		left, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
			return reg.client.TimeToLive(ctx, holder)
		})
		if err != nil {
			return fmt.Errorf("look at the lease of a namesake: %w", err)
		}
		if left.TTL > least || time.Now().After(patience) {
			reg.revoke()
			return presence.ErrDuplicate
		}
		least = left.TTL
		if !pause(ctx, time.Second) {
			return ctx.Err()
		}
		if _, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
			return reg.client.KeepAliveOnce(ctx, reg.lease)
		}); err != nil {
			return fmt.Errorf("keep lease: %w", err)
		}
	}
}

// claim writes the record if nobody else's is there; otherwise it returns the
// lease of whoever has it.
func (reg *registration) claim(ctx context.Context) (clientv3.LeaseID, error) {
	value, err := protojson.Marshal(reg.self())
	if err != nil {
		return 0, fmt.Errorf("encode member: %w", err)
	}
	put := clientv3.OpPut(reg.key, string(value), clientv3.WithLease(reg.lease))
	resp, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return reg.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(reg.key), "=", 0)).
			Then(put).Else(clientv3.OpGet(reg.key)).Commit()
	})
	if err != nil {
		return 0, fmt.Errorf("write member: %w", err)
	}
	if resp.Succeeded {
		return clientv3.NoLease, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return 0, errors.New("write member: the record went while it was read")
	}
	other := reg.decode(reg.key, kvs[0].Value)
	if kvs[0].Lease != 0 && (other == nil || other.Incarnation != reg.self().Incarnation) {
		return clientv3.LeaseID(kvs[0].Lease), nil
	}
	// Our own from before (or one without a lease): write over it, if it is still the same.
	_, err = bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return reg.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(reg.key), "=", kvs[0].ModRevision)).
			Then(put).Commit()
	})
	return clientv3.NoLease, err
}

// keep renews the lease until it is lost or ctx ends. clientv3's own KeepAlive
// gives up when etcd is away for longer than the TTL although the lease lives on.
func (reg *registration) keep(ctx context.Context, update <-chan struct{}) {
	wait := reg.step()
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-update:
			timer.Stop()
			if err := reg.rewrite(ctx); err != nil {
				reg.log.Debug("update member", "err", err)
				wait = min(500*time.Millisecond, reg.step())
				continue
			}
		case <-timer.C:
		}
		_, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
			return reg.client.KeepAliveOnce(ctx, reg.lease)
		})
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return
		case err != nil:
			reg.log.Debug("keep lease", "err", err)
			wait = min(500*time.Millisecond, reg.step())
		default:
			wait = reg.step()
			if err := reg.rewriteIfStale(ctx); err != nil {
				reg.log.Debug("update member", "err", err)
			}
		}
	}
}

func (reg *registration) rewrite(ctx context.Context) error {
	value, err := protojson.Marshal(reg.self())
	if err != nil {
		return err
	}
	_, err = bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.PutResponse, error) {
		return reg.client.Put(ctx, reg.key, string(value), clientv3.WithLease(reg.lease))
	})
	return err
}

// rewriteIfStale puts the record back if it is not what it should be: an update
// that failed while etcd was away, or a restore from a backup.
func (reg *registration) rewriteIfStale(ctx context.Context) error {
	got, err := bounded(ctx, reg.step(), func(ctx context.Context) (*clientv3.GetResponse, error) {
		return reg.client.Get(ctx, reg.key)
	})
	if err != nil {
		return err
	}
	self := reg.self()
	if len(got.Kvs) == 1 && got.Kvs[0].Lease == int64(reg.lease) {
		if m := reg.decode(reg.key, got.Kvs[0].Value); m != nil && m.State == self.State && m.Incarnation == self.Incarnation {
			return nil
		}
	}
	return reg.rewrite(ctx)
}

// leave says goodbye on a deadline of its own: the one before has ended.
func (reg *registration) leave() {
	if !reg.had {
		reg.revoke()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	m := reg.self()
	m.State = gatewayv1.State_STATE_LEFT
	if value, err := protojson.Marshal(m); err == nil {
		if _, err := reg.client.Put(ctx, reg.key, string(value), clientv3.WithLease(reg.lease)); err != nil {
			reg.log.Warn("could not deregister; the lease will run out", "err", err)
			return
		}
	}
	_, _ = reg.client.Revoke(ctx, reg.lease)
}

func (reg *registration) revoke() {
	if reg.lease == clientv3.NoLease {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	_, _ = reg.client.Revoke(ctx, reg.lease)
}

func bounded[T any](ctx context.Context, d time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return call(ctx)
}
