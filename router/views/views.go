// Package views answers which router owns a channel now, and whether one has been
// this router's own without a break. Ownership is the rendezvous hash of the channel
// over the routers that serve. It is a hint that says whose memory is fresh: the store
// is the fence, and a channel without a store has one holder by its hand-overs.
//
// The table, the writer, backfill, the handover, retention and the api ask; the root
// makes it and runs it. It calls the membership, whose methods do not block.
//
// Life: New does nothing; Run (one goroutine) follows the membership and the clock until
// its context ends. Look may be called from any goroutine and takes no lock unless the
// membership has changed since the last call.
//
// Invariants: a Picture never changes; views are numbered in the order in which this
// router saw them; every break (a lost lease, a process that stood still) is in each
// Picture that is taken after it.
//
// Left out on purpose: what a router does about it (router/channel, router/handover).
package views

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Membership is the router's own place in the cluster and its view of it.
// presence.Cluster is one. No method blocks.
type Membership interface {
	Snapshot() *presence.Snapshot
	Changed() <-chan struct{} // closed at the next change
	Incarnation() uint64      // of this router; another one of its name has another
	LeaseLosses() uint64      // how often this router was out of the cluster
}

// viewsKept is how many views of the past are kept to prove that a channel was
// ours all the time; what was known before the oldest of them is not trusted.
const viewsKept = 64

// Config of Views. All durations are positive or zero.
type Config struct {
	Self       string        // id of this router
	Recheck    time.Duration // after a change of owner the old one may still believe that it owns the channel
	PauseLimit time.Duration // a process that stood still for longer trusts nothing that it knew
	Window     time.Duration // after a change of owner another router may still have the channel
}

// Views follows the membership for one router.
type Views struct {
	// immutable after New
	cfg     Config
	members Membership
	start   time.Time // origin of beat and departed

	// atomic
	views    atomic.Pointer[[]view] // oldest first, at least one; replaced under mu
	beat     atomic.Int64           // nanoseconds from start to the last tick; 0: none yet
	pauses   atomic.Uint64          // times this process stood still
	departed atomic.Int64           // nanoseconds from start when this router began to leave; 0: it stays

	mu sync.Mutex // serialises the making of views
}

// view is one snapshot of the membership, numbered as this router saw them.
type view struct {
	seq      uint64
	since    time.Time
	snapshot *presence.Snapshot
}

func (v *view) revision() uint64 { return uint64(max(0, v.snapshot.Revision())) }

// New makes Views that know nothing yet: nobody owns anything.
func New(cfg Config, members Membership) *Views {
	v := &Views{cfg: cfg, members: members, start: time.Now()}
	v.views.Store(&[]view{{seq: 1, since: v.start, snapshot: presence.NewSnapshot(nil, 0)}})
	return v
}

// Run sees views as they change and the clock as it stands still, until ctx ends.
func (v *Views) Run(ctx context.Context) error {
	v.beat.Store(v.elapsed())
	ticker := time.NewTicker(v.cfg.PauseLimit / 8)
	defer ticker.Stop()
	for {
		changed := v.members.Changed()
		v.current()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
			v.tick()
		}
	}
}

// Changed is closed at the next change of the membership.
func (v *Views) Changed() <-chan struct{} { return v.members.Changed() }

// Depart gives everything to other routers from now on. It is called once.
func (v *Views) Depart() { v.departed.Store(max(1, v.elapsed())) }

// Look is what this router sees now; now is a time of the monotonic clock.
func (v *Views) Look(now time.Time) Picture {
	breaks := v.breaks() // before the views: a break in between is seen by the next look
	p := Picture{cfg: &v.cfg, breaks: breaks, incarnation: v.members.Incarnation(), At: now, views: v.current()}
	if d := v.departed.Load(); d != 0 {
		p.departed = v.start.Add(time.Duration(d))
	}
	return p
}

// Owned says whether a channel is this router's by the view in force.
func (v *Views) Owned(channel string) bool {
	views := v.current()
	p := Picture{cfg: &v.cfg, incarnation: v.members.Incarnation()}
	return p.mine(views[len(views)-1].snapshot, channel)
}

// Owner is who the view in force gives a channel to; nil: no router serves.
func (v *Views) Owner(channel string) *presence.Member { return v.Snapshot().Owner(channel) }

// Snapshot is the membership as it is now.
func (v *Views) Snapshot() *presence.Snapshot {
	views := v.current()
	return views[len(views)-1].snapshot
}

// Router is the member of an id, in whatever state; nil: there is none.
func (v *Views) Router(id string) *presence.Member {
	return v.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id})
}

// Others are the other routers, in whatever state.
func (v *Views) Others() []*presence.Member { return others(v.Snapshot(), v.cfg.Self) }

func others(s *presence.Snapshot, self string) []*presence.Member {
	var all []*presence.Member
	for _, m := range s.Members() {
		if m.Role == gatewayv1.Role_ROLE_ROUTER && m.Id != self {
			all = append(all, m)
		}
	}
	return all
}

func (v *Views) elapsed() int64 { return int64(time.Since(v.start)) }

// tick finds out that the process was stopped (SIGSTOP, a frozen machine) for
// long enough to have lost its lease without having heard of it.
func (v *Views) tick() {
	now := v.elapsed()
	if time.Duration(now-v.beat.Load()) > v.cfg.PauseLimit {
		v.pauses.Add(1) // before the beat: who sees that sees the break as well
	}
	v.beat.Store(now)
}

// breaks counts what ends all trust: lost leases and pauses, also one that tick has yet
// to count.
func (v *Views) breaks() uint64 {
	for {
		counted := v.pauses.Load()
		paused := uint64(0)
		if beat := v.beat.Load(); beat != 0 && time.Duration(v.elapsed()-beat) > v.cfg.PauseLimit {
			paused = 1
		}
		if v.pauses.Load() == counted { // else tick came between
			return v.members.LeaseLosses() + counted + paused
		}
	}
}

// current returns all views up to now, the last one in force.
func (v *Views) current() []view {
	views := *v.views.Load()
	if s := v.members.Snapshot(); s != views[len(views)-1].snapshot {
		return v.advance()
	}
	return views
}

func (v *Views) advance() []view {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := *v.views.Load()
	last, s := old[len(old)-1], v.members.Snapshot()
	if s == last.snapshot {
		return old
	}
	if last.seq > 1 && s.Revision() == last.snapshot.Revision() && sameRouters(s, last.snapshot) {
		// Edges came or went: the routers, and so the owners, are the same.
		last.snapshot = s
		next := append(append([]view(nil), old[:len(old)-1]...), last)
		v.views.Store(&next)
		return next
	}
	if len(old) == viewsKept {
		old = old[1:]
	}
	next := append(append([]view(nil), old...), view{seq: last.seq + 1, since: time.Now(), snapshot: s})
	v.views.Store(&next)
	return next
}

func sameRouters(a, b *presence.Snapshot) bool {
	return slices.EqualFunc(a.Routers(), b.Routers(), func(x, y *presence.Member) bool { return x.Id == y.Id })
}

// View is the newest snapshot, and a number that grows when owners of channels may have
// changed.
func (v *Views) View() (*presence.Snapshot, uint64) {
	views := v.current()
	last := &views[len(views)-1]
	return last.snapshot, last.seq
}
