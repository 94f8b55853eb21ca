package presence

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// silence on the bus makes a member whose lease is gone gone itself.
	silence = 3 * time.Second
	// memory is how far back the half rule looks.
	memory = 10 * time.Second
)

// view decides who is a member; a pure state machine, driven by its Cluster.
//
// A member is gone when it said so (left), or when its lease is gone and it has
// been silent on the bus for 3 s. A registry that suddenly shows fewer than half
// of the members of ten seconds ago is not believed: those members stay until
// each is listed again or has been silent for 3 s on a bus that is connected.
type view struct {
	entries         map[Key]*entry
	revision        int64
	routersRevision int64
	busUp           bool
	busSince        time.Time // of the last change of busUp
	counts          []count   // listed members over the last ten seconds, oldest first
	kept            int       // times the half rule kept somebody
}

type entry struct {
	member  *Member
	leaseUp bool
	goneRev int64     // revision at which the lease was gone
	held    bool      // by the half rule
	heard   time.Time // last load figure; zero: never
	lostAt  time.Time // when the lease was found gone
	figure  *Figure
}

type count struct {
	at time.Time
	n  int
}

func newView() *view { return &view{entries: make(map[Key]*entry)} }

// list takes a full listing of the registry at a revision. It reports whether
// the snapshot changed, as all inputs do.
func (v *view) list(members []*Member, revision int64, now time.Time) bool {
	v.revision = revision
	listed := make(map[Key]bool, len(members))
	changed := false
	for _, m := range members {
		if m.State == gatewayv1.State_STATE_LEFT {
			continue
		}
		listed[KeyOf(m)] = true
		changed = v.set(m, revision) || changed
	}
	var missing []*entry
	for key, e := range v.entries {
		if !listed[key] && e.leaseUp {
			missing = append(missing, e)
		}
	}
	v.leasesGone(missing, revision, now)
	return v.expire(now) || changed
}

// put takes one record.
func (v *view) put(m *Member, revision int64, now time.Time) bool {
	v.revision = max(v.revision, revision)
	if m.State == gatewayv1.State_STATE_LEFT {
		e := v.entries[KeyOf(m)]
		if e == nil || e.member.Incarnation != m.Incarnation {
			return false
		}
		v.remove(e, revision)
		return true
	}
	return v.set(m, revision)
}

// delete takes the end of one record's lease.
func (v *view) delete(key Key, revision int64, now time.Time) bool {
	v.revision = max(v.revision, revision)
	if e := v.entries[key]; e != nil && e.leaseUp {
		v.leasesGone([]*entry{e}, revision, now)
	}
	return v.expire(now)
}

// heardFrom takes a load figure.
func (v *view) heardFrom(f *Figure, now time.Time) {
	e := v.entries[Key{f.Role, f.Id}]
	if e == nil || e.member.Incarnation != f.Incarnation {
		return
	}
	e.heard, e.figure = now, f
}

// bus takes the state of this node's own connection to the bus.
func (v *view) bus(up bool, now time.Time) {
	if v.busUp != up {
		v.busUp, v.busSince = up, now
	}
}

// tick must come about every second.
func (v *view) tick(now time.Time) bool {
	n := 0
	for _, e := range v.entries {
		if e.leaseUp {
			n++
		}
	}
	v.counts = append(v.counts, count{now, n})
	for len(v.counts) > 1 && now.Sub(v.counts[1].at) >= memory {
		v.counts = v.counts[1:]
	}
	return v.expire(now)
}

// set files a record and reports whether it says anything new.
func (v *view) set(m *Member, revision int64) bool {
	key := KeyOf(m)
	e := v.entries[key]
	if e == nil || e.member.Incarnation != m.Incarnation {
		e = &entry{}
		v.entries[key] = e
	}
	same := e.member != nil && e.member.State == m.State && e.member.Address == m.Address && e.member.Capacity == m.Capacity
	if !same && m.Role == gatewayv1.Role_ROLE_ROUTER {
		v.routersRevision = max(v.routersRevision, revision)
	}
	e.member, e.leaseUp, e.held = m, true, false
	return !same
}

func (v *view) leasesGone(gone []*entry, revision int64, now time.Time) {
	for _, e := range gone {
		e.leaseUp, e.goneRev, e.lostAt = false, revision, now
	}
	if len(gone) == 0 || !v.suspicious() {
		return
	}
	for _, e := range v.entries {
		if !e.leaseUp && !e.held {
			e.held = true
			v.kept++
		}
	}
}

// suspicious says that fewer than half of the members of ten seconds ago have
// their leases.
func (v *view) suspicious() bool {
	if len(v.counts) == 0 {
		return false
	}
	n := 0
	for _, e := range v.entries {
		if e.leaseUp {
			n++
		}
	}
	before := v.counts[0].n
	return before > 1 && 2*n < before
}

// expire removes whoever is gone by now.
func (v *view) expire(now time.Time) bool {
	changed := false
	for _, e := range v.entries {
		if !e.leaseUp && v.silent(e, now) {
			v.remove(e, e.goneRev)
			changed = true
		}
	}
	return changed
}

// silent says that nothing was heard of e for 3 s. While our own bus is down
// that proves nothing about a held member; for any other the lease decides.
func (v *view) silent(e *entry, now time.Time) bool {
	last := e.heard
	if v.busUp {
		if v.busSince.After(last) {
			last = v.busSince
		}
		if e.held && e.lostAt.After(last) {
			last = e.lostAt
		}
	} else if e.held {
		return false
	}
	return now.Sub(last) >= silence
}

func (v *view) remove(e *entry, revision int64) {
	delete(v.entries, KeyOf(e.member))
	if e.member.Role == gatewayv1.Role_ROLE_ROUTER {
		v.routersRevision = max(v.routersRevision, revision)
	}
}

func (v *view) snapshot() *Snapshot {
	members := make([]*Member, 0, len(v.entries))
	for _, e := range v.entries {
		members = append(members, e.member)
	}
	return NewSnapshot(members, v.routersRevision)
}
