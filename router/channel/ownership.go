package channel

import (
	"time"

	"github.com/spillway-io/spillway/router/views"
)

// ownership says who may number one channel, as one router knows it. What it guards
// (epoch, head, tail, keys) is at one router at a time, and moves by a hand-over: who has
// handed a channel over has it no more.
// Its states are drawn in the package comment.
//
// A hand-over knows more than views that are older than it: while revision is above that
// of the view, `to` owns the channel.
//
// Invariants: of one epoch without a store no two routers are held or leaving; a hand-over
// that is late or comes twice brings nothing back (standing).
type ownership struct {
	state    ownerState
	held     views.Trust // the view and the breaks by which it was found held
	to       string      // by the last hand-over: this router, or whom the channel was given to
	revision uint64      // of that hand-over
	until    time.Time   // awaiting: the end of it
	kept     bool        // awaiting: it was held before, and what was known is still here
	lost     time.Time   // leaving: since when it is another's
	gone     time.Time   // given: since when

	newest standing // of all hand-overs to or from this router, the newest
}

type ownerState uint8

const (
	ownNone ownerState = iota
	ownAwaiting
	ownHeld
	ownLeaving
	ownGiven
)

func (s ownerState) String() string {
	return [...]string{"none", "awaiting", "held", "leaving", "given"}[s]
}

// standing is where a channel stands when it is handed over.
type standing struct {
	Position
	moves  uint64 // hand-overs of this epoch so far
	stored bool   // the channel has a store, which fences
}

// after says that a hand-over of p may follow one of q. Without a store only the count of
// moves tells a hand-over from its repetition. With one, routers count for themselves.
func (p standing) after(q standing) bool {
	switch {
	case p.Epoch != q.Epoch:
		return p.Epoch > q.Epoch
	case p.stored:
		return p.Offset >= q.Offset
	}
	return p.moves > q.moves
}

// sight is what a router sees of one channel at one moment.
type sight struct {
	self     string
	owner    string // by the view; "": no router serves
	revision uint64
	now      views.Trust
	since    time.Time // of the view
	known    bool      // something of the channel is here
	doubt    bool      // another may have the channel: the owner changed of late, or we were away
}

// Turn is whose turn it is to serve a channel.
type Turn uint8

// The turns.
const (
	Wait  Turn = iota // somebody hands it to us, or a view comes
	Serve             // ours
	Pass              // another's
)

// owner is whose the channel is, by the view or by a hand-over that is newer.
func (o *ownership) owner(v *sight) string {
	if o.revision > v.revision {
		return o.to
	}
	return v.owner
}

// use says whether this router may number the channel, or answer from its memory.
// It waits at most `wait` for a hand-over; for `grace` who has lost a channel serves it
// on, unless it has handed it over: whoever shall have it may not be there yet.
func (o *ownership) use(v *sight, now time.Time, wait, grace time.Duration) Turn {
	switch owner := o.owner(v); owner {
	case v.self:
		return o.useOwn(v, now, wait)
	case "":
		return o.useUnowned(now, wait)
	}
	o.lose(v)
	if o.state == ownLeaving && now.Sub(o.lost) < grace {
		return Serve
	}
	return Pass // who owns it has not waited for so long
}

func (o *ownership) useOwn(v *sight, now time.Time, wait time.Duration) Turn {
	if o.state == ownAwaiting && now.Before(o.until) {
		return Wait
	}
	if o.state != ownAwaiting && v.doubt {
		o.await(o.state == ownHeld || o.state == ownLeaving, now.Add(wait))
		return Wait
	}
	o.hold(v)
	return Serve
}

// useUnowned waits for the first view of a router that joins.
func (o *ownership) useUnowned(now time.Time, wait time.Duration) Turn {
	switch {
	case o.state == ownHeld || o.state == ownLeaving:
		return Serve
	case o.state == ownNone && !o.until.IsZero() && now.Before(o.until.Add(wait)):
		return Pass // it has just waited in vain
	case o.state != ownAwaiting:
		o.await(false, now.Add(wait))
	case !now.Before(o.until):
		o.state = ownNone
		return Pass
	}
	return Wait
}

func (o *ownership) await(kept bool, until time.Time) {
	o.state, o.kept, o.until = ownAwaiting, kept, until
}

// hold begins or goes on: what is known of the channel counts.
func (o *ownership) hold(v *sight) { o.state, o.held = ownHeld, v.now }

// lose takes note of a view that gives the channel to another.
func (o *ownership) lose(v *sight) {
	switch {
	case v.known && (o.state == ownHeld || o.state == ownAwaiting && o.kept):
		o.state, o.lost = ownLeaving, v.since
	case o.state == ownHeld || o.state == ownAwaiting || o.state == ownLeaving && !v.known:
		o.state = ownNone // nothing begins any more
	}
}

// nobody ends the awaiting: no other router has the channel.
func (o *ownership) nobody(v *sight) {
	if o.state == ownAwaiting && o.owner(v) == v.self {
		o.hold(v)
	}
}

// due says to whom the channel must be handed over; "": to nobody.
func (o *ownership) due(v *sight) string {
	owner := o.owner(v)
	if owner == "" || owner == v.self {
		return ""
	}
	if o.lose(v); o.state == ownLeaving {
		return owner
	}
	return ""
}

// give lets the channel go as it stands, and returns that as it is handed over.
func (o *ownership) give(to string, revision uint64, from standing, now time.Time) standing {
	o.state, o.to, o.revision, o.gone = ownGiven, to, revision, now
	if from.Epoch == o.newest.Epoch {
		from.moves = o.newest.moves
	}
	from.moves++
	o.newest = from
	return from
}

// holds says that what is here of the channel counts.
func (o *ownership) holds() bool {
	return o.state == ownHeld || o.state == ownLeaving || o.state == ownAwaiting && o.kept
}

// accept takes a hand-over, or refuses it (false) as late or known. have: what is here of
// the channel counts, and is not older.
func (o *ownership) accept(v *sight, revision uint64, p standing, have bool) bool {
	if have || o.newest.Epoch != 0 && !p.after(o.newest) {
		return false
	}
	o.to, o.revision, o.newest = v.self, revision, p
	o.hold(v)
	return true
}
