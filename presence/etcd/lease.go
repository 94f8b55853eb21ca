package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// leaveTime bounds the farewell of a member that stops.
	leaveTime = 2 * time.Second
	// retryEvery is the pause after a failed call; a call itself waits for the
	// connection.
	retryEvery = 500 * time.Millisecond
)

// errRaced says that the record changed between the look and the write.
var errRaced = errors.New("the record changed meanwhile")

// registrar keeps one member's record in the registry; confined to Register's goroutine.
//
//	         grant, write            lease gone, or
//	joining --------------> kept  <record of another>--> joining ...
//	   |  live duplicate,      |
//	   |  never kept before    | ctx ends
//	   v                       v
//	refused                 leaving (LEFT, revoke)
type registrar struct {
	*Registry
	node    presence.Registration
	key     string
	self    presence.Key
	lease   clientv3.LeaseID // NoLease: none that is known to live
	kept    bool             // was registered at least once
	failing bool             // said so in the log
}

// Register implements presence.Registry.
func (r *Registry) Register(ctx context.Context, node presence.Registration) error {
	self := presence.KeyOf(node.Self())
	s := &registrar{Registry: r, node: node, key: r.key(self), self: self}
	for ctx.Err() == nil {
		err := s.join(ctx)
		switch {
		case err == nil:
			s.failing, s.kept = false, true
			node.Registered()
			if s.keep(ctx); ctx.Err() == nil {
				node.Lost()
			}
			continue
		case errors.Is(err, presence.ErrDuplicate) && !s.kept:
			s.revoke(ctx)
			return err
		case !errors.Is(err, errRaced):
			s.complain(ctx, err)
		}
		pause(ctx, min(retryEvery, s.step()))
	}
	s.leave(ctx)
	return nil
}

// complain logs the first failure of a row: the others say the same.
func (s *registrar) complain(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	level := s.log.Debug
	if !s.failing {
		level = s.log.Warn
	}
	s.failing = true
	level("could not register; trying on", "member", s.self.String(), "err", err)
}

// join takes a lease and writes the record under it. If another process lives
// under this id it fails with a DuplicateError; a dead one's lease it waits out.
func (s *registrar) join(ctx context.Context) error {
	revision, err := s.free(ctx)
	if err != nil {
		return err
	}
	if s.lease == clientv3.NoLease {
		grant, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
			return s.client.Grant(ctx, int64((s.ttl+time.Second-1)/time.Second))
		})
		if err != nil {
			return fmt.Errorf("grant lease: %w", err)
		}
		s.lease = grant.ID
	}
	err = s.write(ctx, revision)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.lease = clientv3.NoLease
	}
	return err
}

// free waits until no other process holds the key, for the life of a lease at
// most, and returns the revision at which it saw that (0: no record).
func (s *registrar) free(ctx context.Context) (int64, error) {
	var watched duplicate
	for {
		got, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, s.key)
		})
		if err != nil {
			return 0, fmt.Errorf("look for another process with this member id: %w", err)
		}
		if len(got.Kvs) == 0 {
			return 0, nil
		}
		kv := got.Kvs[0]
		other := s.decode(s.key, kv.Value)
		if s.ours(other) || kv.Lease == 0 || other != nil && other.State == gatewayv1.State_STATE_LEFT {
			return kv.ModRevision, nil
		}
		left, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
			return s.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
		})
		if err != nil {
			return 0, fmt.Errorf("look at the lease of another process with this member id: %w", err)
		}
		if watched.lives(left, time.Now()) {
			return 0, &presence.DuplicateError{Key: s.self}
		}
		if !pause(ctx, min(time.Second, s.step())) {
			return 0, ctx.Err()
		}
	}
}

func (s *registrar) ours(m *presence.Member) bool {
	return m != nil && m.Incarnation == s.node.Self().Incarnation
}

// duplicate watches the lease of a process that has our id: a live one renews it,
// a dead one's runs out.
type duplicate struct {
	lease    clientv3.LeaseID
	least    int64 // s; smallest remaining life that was seen
	patience time.Time
}

// lives takes one look: true once the remaining life rose, or did not run out
// in time (which is for lives too short to be seen to rise: etcd counts seconds).
func (n *duplicate) lives(left *clientv3.LeaseTimeToLiveResponse, now time.Time) bool {
	if n.lease != left.ID {
		// etcd ends leases up to half a second late, and a new leader gives them a
		// whole life again.
		life := time.Duration(max(left.GrantedTTL, left.TTL))*time.Second + 2*time.Second
		*n = duplicate{lease: left.ID, least: left.TTL, patience: now.Add(life)}
		return false
	}
	if left.TTL > n.least || now.After(n.patience) {
		return true
	}
	n.least = left.TTL
	return false
}

// write puts the record under our lease if its key is as it was at a revision
// (0: absent).
func (s *registrar) write(ctx context.Context, revision int64) error {
	value, err := encode(s.node.Self())
	if err != nil {
		return err
	}
	resp, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(s.key), "=", revision)).
			Then(clientv3.OpPut(s.key, value, clientv3.WithLease(s.lease))).Commit()
	})
	if err != nil {
		return fmt.Errorf("write member: %w", err)
	}
	if !resp.Succeeded {
		return errRaced
	}
	return nil
}

// keep renews the lease and mends the record until the lease is lost, another
// process has our key, or ctx ends. (clientv3's own KeepAlive gives up when etcd is
// away for longer than the TTL, although the lease lives on there.)
func (s *registrar) keep(ctx context.Context) {
	wait := s.step()
	for {
		err := s.wake(ctx, wait)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.lease = clientv3.NoLease
			return
		case errors.Is(err, presence.ErrDuplicate):
			s.log.Error("another process has taken this member id; going on without a record", "member", s.self.String())
			s.failing = true
			s.revoke(ctx)
			return
		case err != nil:
			s.node.KeepFailed()
			s.log.Debug("could not renew the lease", "err", err)
			wait = min(retryEvery, s.step())
		default:
			wait = s.step()
		}
	}
}

// wake waits for the next renewal or update and does it.
func (s *registrar) wake(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-s.node.Update:
		return s.mend(ctx)
	case <-timer.C:
	}
	_, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return s.client.KeepAliveOnce(ctx, s.lease)
	})
	if err != nil {
		return err
	}
	return s.mend(ctx)
}

// mend writes the record if it is not as it should be: our state changed, etcd
// was restored, or somebody deleted it by hand.
func (s *registrar) mend(ctx context.Context) error {
	got, err := bounded(ctx, s.step(), func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.key)
	})
	if err != nil {
		return err
	}
	if len(got.Kvs) == 0 {
		return s.write(ctx, 0)
	}
	kv := got.Kvs[0]
	m := s.decode(s.key, kv.Value)
	switch {
	case m != nil && !s.ours(m) && kv.Lease != 0:
		return &presence.DuplicateError{Key: s.self}
	case clientv3.LeaseID(kv.Lease) == s.lease && proto.Equal(m, s.node.Self()):
		return nil
	}
	return s.write(ctx, kv.ModRevision)
}

// leave says goodbye on a deadline of its own: ctx has ended. Only a record under
// our lease is touched.
func (s *registrar) leave(ctx context.Context) {
	if s.lease == clientv3.NoLease {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	m := s.node.Self()
	m.State = gatewayv1.State_STATE_LEFT
	value, err := encode(m)
	if err == nil {
		_, err = s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.LeaseValue(s.key), "=", s.lease)).
			Then(clientv3.OpPut(s.key, value, clientv3.WithLease(s.lease))).Commit()
	}
	if err == nil {
		_, err = s.client.Revoke(ctx, s.lease)
	}
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.log.Warn("could not deregister; the lease will run out", "member", s.self.String(), "err", err)
	}
}

// revoke gives up a lease that has no record of ours.
func (s *registrar) revoke(ctx context.Context) {
	if s.lease == clientv3.NoLease {
		return
	}
	_, err := bounded(context.WithoutCancel(ctx), leaveTime, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return s.client.Revoke(ctx, s.lease)
	})
	if err != nil {
		s.log.Debug("could not give up a lease; it will run out", "err", err)
	}
	s.lease = clientv3.NoLease
}
