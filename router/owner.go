package router

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
	Changed() <-chan struct{}
	Joined() <-chan struct{}
	Incarnation() uint64
	LeaseLosses() uint64
	SetState(gatewayv1.State)
	LastHeard(presence.Key) time.Time
	Silent(presence.Key) bool
	Figures() map[presence.Key]*presence.Figure
}

// viewsKept is how many views of the past are kept to prove that a channel was
// ours all the time; what was known before the oldest of them is not trusted.
const viewsKept = 64

// view is one snapshot of the membership, numbered as this router saw them.
type view struct {
	seq      uint64
	since    time.Time
	snapshot *presence.Snapshot
}

func (v *view) revision() uint64 { return uint64(max(0, v.snapshot.Revision())) }

// trust is the moment at which a channel's position was known to be the truth:
// it stays the truth while the channel is ours without a break.
type trust struct {
	seq    uint64 // of the view; 0: never
	breaks uint64
}

// ownership answers whether a channel is ours, and has been without a break.
// Ownership is a hint (the store is the fence): it says whose memory is fresh.
type ownership struct {
	// immutable after newOwnership
	self       string
	members    Membership
	recheck    time.Duration
	pauseLimit time.Duration
	window     time.Duration // after a change of owner another may still have the channel

	// atomic
	views  atomic.Pointer[[]view] // oldest first, at least one; replaced under mu
	beat   atomic.Int64           // nanoseconds from start to the last tick; 0: none yet
	pauses atomic.Uint64          // times this process stood still

	departing atomic.Bool  // this router leaves: others own everything
	departed  atomic.Int64 // when that was, nanoseconds from start; before departing

	start time.Time // immutable; origin of beat

	mu sync.Mutex // serialises the making of views
}

func newOwnership(cfg *Config, members Membership) *ownership {
	o := &ownership{self: cfg.ID, members: members, recheck: cfg.OwnerRecheck, pauseLimit: cfg.PauseLimit, window: cfg.HandoverWindow, start: time.Now()}
	// Before the first view nobody can have been known to own anything.
	o.views.Store(&[]view{{seq: 1, since: o.start, snapshot: presence.NewSnapshot(nil, 0)}})
	return o
}

// run sees views as they change and the clock as it stands still, until ctx ends.
func (o *ownership) run(ctx context.Context) error {
	o.beat.Store(int64(time.Since(o.start)))
	ticker := time.NewTicker(o.pauseLimit / 8)
	defer ticker.Stop()
	for {
		changed := o.members.Changed()
		o.current()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
			o.tick()
		}
	}
}

// tick finds out that the process was stopped (SIGSTOP, a frozen machine) for
// long enough to have lost its lease without having heard of it.
func (o *ownership) tick() {
	now := int64(time.Since(o.start))
	if time.Duration(now-o.beat.Load()) > o.pauseLimit {
		o.pauses.Add(1) // before the beat: who sees that sees the break as well
	}
	o.beat.Store(now)
}

// breaks counts what ends all trust: lost leases and pauses, also one that tick has yet
// to count.
func (o *ownership) breaks() uint64 {
	for {
		counted := o.pauses.Load()
		paused := uint64(0)
		if o.paused() {
			paused = 1
		}
		if o.pauses.Load() == counted { // else tick came between
			return o.members.LeaseLosses() + counted + paused
		}
	}
}

// paused says that the ticker is late: it may be a pause that tick has not seen.
func (o *ownership) paused() bool {
	beat := o.beat.Load()
	return beat != 0 && time.Duration(int64(time.Since(o.start))-beat) > o.pauseLimit
}

// current returns all views up to now, the last one in force.
func (o *ownership) current() []view {
	views := *o.views.Load()
	if s := o.members.Snapshot(); s != views[len(views)-1].snapshot {
		return o.advance()
	}
	return views
}

func (o *ownership) advance() []view {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := *o.views.Load()
	last, s := old[len(old)-1], o.members.Snapshot()
	if s == last.snapshot {
		return old
	}
	if last.seq > 1 && s.Revision() == last.snapshot.Revision() && sameRouters(s, last.snapshot) {
		// Edges came or went: the routers, and so the owners, are the same.
		last.snapshot = s
		next := append(append([]view(nil), old[:len(old)-1]...), last)
		o.views.Store(&next)
		return next
	}
	if len(old) == viewsKept {
		old = old[1:]
	}
	next := append(append([]view(nil), old...), view{seq: last.seq + 1, since: time.Now(), snapshot: s})
	o.views.Store(&next)
	return next
}

func sameRouters(a, b *presence.Snapshot) bool {
	return slices.EqualFunc(a.Routers(), b.Routers(), func(x, y *presence.Member) bool { return x.Id == y.Id })
}

// depart gives everything to others from now on.
func (o *ownership) depart() {
	o.departed.Store(int64(time.Since(o.start)))
	o.departing.Store(true)
}

// owner is who the present view gives a channel to; nil: no router serves.
func (o *ownership) owner(name string) *presence.Member {
	views := o.current()
	return views[len(views)-1].snapshot.Owner(name)
}

// mine: what the registry gives to one of our name that died, until its lease has run
// out or we are registered, is not ours. We do not know how far it came, and the
// view has no newer revision for the epochs of channels without a store.
func (o *ownership) mine(s *presence.Snapshot, name string) bool {
	owner := s.Owner(name)
	return owner != nil && owner.Id == o.self && owner.Incarnation == o.members.Incarnation()
}

// owned says whether the channel is ours now.
func (o *ownership) owned(name string) bool {
	views := o.current()
	return o.mine(views[len(views)-1].snapshot, name)
}

// now is the trust that a read which starts now will earn.
func (o *ownership) now() trust {
	breaks := o.breaks()
	views := o.current()
	return trust{seq: views[len(views)-1].seq, breaks: breaks}
}

// unbroken says that the channel was ours from t until now. Views older than the
// revision of a hand that brought it to us do not count.
func (o *ownership) unbroken(name string, t trust, handed uint64) bool {
	views := o.current()
	if t.seq == 0 || t.seq < views[0].seq {
		return false
	}
	return o.reign(views, len(views)-1, name, t, handed)
}

// reign says that the channel was ours from t to the view at an index.
func (o *ownership) reign(views []view, last int, name string, t trust, handed uint64) bool {
	for i := last; i >= 0 && views[i].seq >= t.seq; i-- {
		if views[i].revision() >= handed && !o.mine(views[i].snapshot, name) {
			return false
		}
	}
	return true
}

// seq is that of the view in force.
func (o *ownership) seq() uint64 {
	views := o.current()
	return views[len(views)-1].seq
}

// trusted says that what was known at t may be answered from memory now. settled: of
// the last hand that brought the channel with the truth, 0: none did.
func (o *ownership) trusted(name string, t trust, settled uint64) bool {
	views := o.current()
	return t.seq != 0 && t.breaks == o.breaks() && o.unbroken(name, t, settled) &&
		!o.fresh(views, len(views)-1, name, settled)
}

// settled says the same of a channel that another owns by now, if this router
// has numbered it since: it was trusted in the last view that gave it to us.
func (o *ownership) settled(name string, t trust, settled uint64) bool {
	views := o.current()
	last := len(views) - 1
	for last > 0 && !o.mine(views[last].snapshot, name) && views[last].revision() >= settled {
		last--
	}
	return t.seq != 0 && t.breaks == o.breaks() && t.seq >= views[0].seq &&
		o.reign(views, last, name, t, settled) && !o.fresh(views, last, name, settled)
}

// fresh says that another may still believe that it owns the channel: the owner
// changed less than recheck before now, up to the view at an index, and did not hand
// it over.
func (o *ownership) fresh(views []view, last int, name string, settled uint64) bool {
	edge := time.Now().Add(-o.recheck)
	for i := last; i > 0 && views[i].since.After(edge); i-- {
		if views[i].revision() > settled && !o.mine(views[i-1].snapshot, name) {
			return true
		}
	}
	return false
}

// revision is that of the view in force.
func (o *ownership) revision() uint64 {
	views := o.current()
	return views[len(views)-1].revision()
}
