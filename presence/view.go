package presence

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// memory is how far back the half rule looks.
	memory = 10 * time.Second
	// revisionStep leaves room between two revisions of the registry for removals
	// by silence; see Snapshot.Revision.
	revisionStep = 16
)

// view decides who is a member; a pure state machine, driven by its Cluster.
//
// A member is gone when it said so (left), or when its lease is gone and it has
// been silent on the bus. A registry that suddenly shows fewer than half of the
// members of ten seconds ago is not believed: those without a lease are held
// until each is listed again or silent on a bus that works.
//
//	        put, list                delete, not listed
//	(none) ----------> with a lease --------------------> without a lease
//	   ^                |    ^                              |   |    |
//	   |     put left   |    |          put, list           |   |    | half rule
//	   |<---------------+    +------------------------------+   |    v
//	   |<-------------- silent, or no lease and no bus ---------+   held
//	   |<-------------- silent on a bus that works -----------------+
//
// Silence is time in which others were heard and the member was not: it runs from
// the member's last figure (or since the bus came up, or since we knew of the
// member) to the last figure of anybody. Our own come back to us, so a connection
// that is dead without knowing it, or a process that stood still, hears nobody and
// judges nobody.
type view struct {
	// immutable
	interval time.Duration // between figures of one member, up to 100 members

	entries     map[Key]*entry
	raw         int64 // newest revision of the registry
	lift        int64 // added to it: what restores took away; raw + lift never falls
	routers     int64 // Revision of the snapshot
	touched     bool  // a router changed in this input
	busUp       bool
	busSince    time.Time    // the bus was heard from then on without a break
	lastFigure  time.Time    // the last figure of anybody
	samples     []sample     // oldest first, at most memory long and one before
	transitions []transition // of this input
}

type entry struct {
	member *Member
	known  time.Time // since when its id is in the view
	born   time.Time // since when this incarnation is
	heard  time.Time // last figure of this incarnation; zero: never
	figure *Figure   // that figure

	leaseUp bool
	lostAt  time.Time // when the lease was found gone
	held    bool      // by the half rule; held => !leaseUp
}

// sample is how many members had leases at a moment, without those that have left
// in order since.
type sample struct {
	at time.Time
	n  int
}

func newView(interval time.Duration) *view {
	return &view{interval: interval, entries: make(map[Key]*entry)}
}

// take returns what the last input did.
func (v *view) take() []transition {
	transitions := v.transitions
	v.transitions = nil
	if v.touched {
		v.touched = false
		v.routers = max((v.raw+v.lift)*revisionStep, v.routers+1)
	}
	return transitions
}

// list takes a full listing of the registry at a revision.
func (v *view) list(members []*Member, revision int64, now time.Time) {
	if revision < v.raw {
		v.lift += v.raw - revision + 1
		v.raw = revision
		v.emit(transitionWentBack, nil, DepartureNone)
	}
	v.raw = max(v.raw, revision)
	listed := make(map[Key]bool, len(members))
	for _, m := range members {
		listed[KeyOf(m)] = true
		v.put(m, revision, now)
	}
	var missing []*entry
	for _, e := range v.sorted(func(e *entry) bool { return e.leaseUp }) {
		if !listed[KeyOf(e.member)] {
			missing = append(missing, e)
		}
	}
	v.leasesGone(missing, now)
	v.expire(now)
}

// put takes one record.
func (v *view) put(m *Member, revision int64, now time.Time) {
	v.raw = max(v.raw, revision)
	e := v.entries[KeyOf(m)]
	switch {
	case m.State == gatewayv1.State_STATE_LEFT:
		if e != nil && e.member.Incarnation == m.Incarnation {
			v.left(e)
		}
		return
	case e == nil:
		e = &entry{known: now, born: now}
		v.entries[KeyOf(m)] = e
		v.file(e, m, transitionJoined)
	case e.member.Incarnation != m.Incarnation:
		before := e.member
		*e = entry{known: e.known, born: now}
		v.file(e, m, transitionReplaced)
		v.transitions[len(v.transitions)-1].before = before
	case !proto.Equal(e.member, m):
		v.file(e, m, transitionChanged)
	case !e.leaseUp:
		v.emit(transitionBack, e.member, DepartureNone)
	}
	e.leaseUp, e.held = true, false
}

// delete takes the end of one record's lease.
func (v *view) delete(key Key, revision int64, now time.Time) {
	v.raw = max(v.raw, revision)
	if e := v.entries[key]; e != nil && e.leaseUp {
		v.leasesGone([]*entry{e}, now)
	}
	v.expire(now)
}

// heard takes a load figure.
func (v *view) heard(f *Figure, now time.Time) {
	if !v.busWorks(now) {
		v.busSince = now
	}
	v.lastFigure = now
	e := v.entries[Key{f.Role, f.Id}]
	if e != nil && e.member.Incarnation == f.Incarnation {
		e.heard, e.figure = now, f
	}
}

// bus takes the state of this node's own connection to the bus.
func (v *view) bus(up bool, now time.Time) {
	if v.busUp == up {
		return
	}
	if v.busUp = up; up {
		v.busSince, v.lastFigure = now, now
	}
}

// tick must come about every second.
func (v *view) tick(now time.Time) {
	v.samples = append(v.samples, sample{now, v.withLease(now)})
	for len(v.samples) > 1 && now.Sub(v.samples[1].at) >= memory {
		v.samples = v.samples[1:]
	}
	v.expire(now)
}

// file puts a record that says something new in its place.
func (v *view) file(e *entry, m *Member, kind transitionKind) {
	e.member = m
	v.touch(m)
	v.emit(kind, m, DepartureNone)
}

func (v *view) touch(m *Member) {
	v.touched = v.touched || m.Role == gatewayv1.Role_ROLE_ROUTER
}

func (v *view) emit(kind transitionKind, m *Member, reason Departure) {
	v.transitions = append(v.transitions, transition{kind: kind, member: m, reason: reason})
}

// left removes who deregistered, from the past too: many that leave in order
// are no reason to doubt the registry.
func (v *view) left(e *entry) {
	for i := range v.samples {
		if e.leaseUp && !v.samples[i].at.Before(e.known) {
			v.samples[i].n--
		}
	}
	v.remove(e, DepartureLeft)
}

func (v *view) remove(e *entry, reason Departure) {
	delete(v.entries, KeyOf(e.member))
	v.touch(e.member)
	v.emit(transitionGone, e.member, reason)
}

func (v *view) leasesGone(gone []*entry, now time.Time) {
	for _, e := range gone {
		e.leaseUp, e.lostAt = false, now
		v.emit(transitionLease, e.member, DepartureNone)
	}
	if len(gone) == 0 || !v.suspicious() {
		return
	}
	for _, e := range v.sorted(leaseless) {
		if !e.held {
			e.held = true
			v.emit(transitionKept, e.member, DepartureNone)
		}
	}
}

// suspicious says that fewer than half of the members of ten seconds ago have
// their leases.
func (v *view) suspicious() bool {
	if len(v.samples) == 0 {
		return false
	}
	before := v.samples[0]
	return before.n > 1 && 2*v.withLease(before.at) < before.n
}

// withLease counts those that were known at a moment and have a lease now.
func (v *view) withLease(known time.Time) int {
	n := 0
	for _, e := range v.entries {
		if e.leaseUp && !e.known.After(known) {
			n++
		}
	}
	return n
}

// expire removes whoever is gone by now.
func (v *view) expire(now time.Time) {
	busWorks := v.busWorks(now)
	for _, e := range v.sorted(leaseless) {
		switch {
		case busWorks && v.silent(e):
			v.remove(e, DepartureSilent)
		case !busWorks && !e.held && now.Sub(later(e.heard, e.lostAt)) >= v.silence(e.member.Role):
			// The wait lets the half rule see losses that come one by one.
			v.remove(e, DepartureLease)
		}
	}
}

// busWorks says that the bus works as far as this node can tell: connected, and
// somebody was heard of late.
func (v *view) busWorks(now time.Time) bool {
	return v.busUp && now.Sub(v.lastFigure) < figuresMissed*v.interval
}

// silent judges a member on a bus that works.
func (v *view) silent(e *entry) bool {
	from := later(later(e.heard, e.born), v.busSince)
	if e.held {
		from = later(from, e.lostAt)
	}
	return v.lastFigure.Sub(from) >= v.silence(e.member.Role)
}

// silence is how long a member must not be heard to count as silent.
func (v *view) silence(role gatewayv1.Role) time.Duration {
	return figuresMissed * figureInterval(v.interval, role, len(v.entries))
}

func (v *view) snapshot() *Snapshot {
	members := make([]*Member, 0, len(v.entries))
	for _, e := range v.entries {
		members = append(members, e.member)
	}
	return NewSnapshot(members, v.routers)
}

func leaseless(e *entry) bool { return !e.leaseUp }

// sorted gives some entries an order, so that outputs are the same in every run.
func (v *view) sorted(want func(*entry) bool) []*entry {
	var entries []*entry
	for _, e := range v.entries {
		if want(e) {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.member.Role, b.member.Role), cmp.Compare(a.member.Id, b.member.Id))
	})
	return entries
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
