package router

import "time"

// tenure says who may number one channel, as one router knows it: a pure state
// machine, a part of channel. What it guards (epoch, head, tail, keys) is one thing
// that is at one router: by Hand it moves, and who has given it has it no more.
//
//	         use, others may have it            handed, nobody has it, too late
//	none ------------------------------> awaiting ------------------------------+
//	 ^ \                                   |   ^                                |
//	 |  +-- use, nobody can have it --------)---)------------------------------> held
//	 |                                      |   +------ use, we were away -------|
//	 +<---- another's by the view ----------+                                   |
//	                           leaving <----- another's by the view ------------+
//	                              |                  ours again: back to held   |
//	given <------ give -----------+<--------------------------------------------+
//
// given behaves as none, but knows to whom. leaving serves for its grace, and can be
// given after it too.
//
// A hand knows more than views that are older than it: while revision > that of the
// view, `to` owns the channel.
//
// Invariants: of one epoch without a store no two tenures in the cluster are held or
// leaving; a hand that is late or comes twice brings nothing back (standing).
type tenure struct {
	state    tenureState
	seq      uint64    // of the view by which it was found held
	breaks   uint64    // of that moment
	to       string    // by the last hand: this router, or whom it was given to
	revision uint64    // of that hand
	until    time.Time // awaiting: the end of it
	kept     bool      // awaiting: it was held before, and is still here
	lost     time.Time // leaving: since when it is another's
	gone     time.Time // given: since when

	floor standing // the newest that was handed here, or on from here
}

// standing is where a channel stands when it is handed.
type standing struct {
	epoch, head uint64
	moves       uint64 // hands of this epoch so far
	stored      bool   // it has a store, which fences
}

// after says that a hand of p may follow one of q. Without a store only the count of
// moves tells a hand from its repetition. With one, routers count for themselves.
func (p standing) after(q standing) bool {
	switch {
	case p.epoch != q.epoch:
		return p.epoch > q.epoch
	case p.stored:
		return p.head >= q.head
	}
	return p.moves > q.moves
}

type tenureState uint8

const (
	tenureNone tenureState = iota
	tenureAwaiting
	tenureHeld
	tenureLeaving
	tenureGiven
)

func (s tenureState) String() string {
	return [...]string{"none", "awaiting", "held", "leaving", "given"}[s]
}

// sight is what a router sees of one channel at one moment.
type sight struct {
	self     string
	owner    string // by the view; "": no router serves
	revision uint64
	seq      uint64    // of the view, by this router's own numbering
	breaks   uint64    // times that we were away
	since    time.Time // of the view
	known    bool      // something of the channel is here
	doubt    bool      // another may have the channel: the owner changed of late, or we were away
}

// turn is whose turn it is to serve a channel.
type turn uint8

const (
	turnWait  turn = iota // somebody hands it to us, or a view comes
	turnServe             // ours
	turnPass              // another's
)

// owner is whose the channel is, by the view or by a hand that is newer.
func (t *tenure) owner(v *sight) string {
	if t.revision > v.revision {
		return t.to
	}
	return v.owner
}

// use says whether this router may number the channel, or answer from its memory.
// It waits at most `wait` for a hand; for `grace` who has lost a channel serves it
// on, unless it has given it: whoever shall have it may not be there yet.
func (t *tenure) use(v *sight, now time.Time, wait, grace time.Duration) turn {
	switch owner := t.owner(v); owner {
	case v.self:
		return t.useOwn(v, now, wait)
	case "":
		return t.useUnowned(now, wait)
	}
	t.lose(v)
	if t.state == tenureLeaving && now.Sub(t.lost) < grace {
		return turnServe
	}
	return turnPass // who owns it has not waited for so long
}

func (t *tenure) useOwn(v *sight, now time.Time, wait time.Duration) turn {
	if t.state == tenureAwaiting && now.Before(t.until) {
		return turnWait
	}
	if t.state != tenureAwaiting && v.doubt {
		t.kept = t.state == tenureHeld || t.state == tenureLeaving
		t.state, t.until = tenureAwaiting, now.Add(wait)
		return turnWait
	}
	t.hold(v)
	return turnServe
}

// useUnowned waits for the first view of a router that joins.
func (t *tenure) useUnowned(now time.Time, wait time.Duration) turn {
	switch {
	case t.state == tenureHeld || t.state == tenureLeaving:
		return turnServe
	case t.state == tenureNone && !t.until.IsZero() && now.Before(t.until.Add(wait)):
		return turnPass // it has just waited in vain
	case t.state != tenureAwaiting:
		t.state, t.until, t.kept = tenureAwaiting, now.Add(wait), false
	case !now.Before(t.until):
		t.state = tenureNone
		return turnPass
	}
	return turnWait
}

// hold begins or goes on: what is known of the channel counts.
func (t *tenure) hold(v *sight) { t.state, t.seq, t.breaks = tenureHeld, v.seq, v.breaks }

// lose takes note of a view that gives the channel to another.
func (t *tenure) lose(v *sight) {
	switch {
	case v.known && (t.state == tenureHeld || t.state == tenureAwaiting && t.kept):
		t.state, t.lost = tenureLeaving, v.since
	case t.state == tenureHeld || t.state == tenureAwaiting || t.state == tenureLeaving && !v.known:
		t.state = tenureNone // nothing begins any more
	}
}

// settle ends the awaiting: nobody else has the channel.
func (t *tenure) settle(v *sight) {
	if t.state == tenureAwaiting && t.owner(v) == v.self {
		t.hold(v)
	}
}

// due says to whom the channel must be handed; "": to nobody.
func (t *tenure) due(v *sight) string {
	owner := t.owner(v)
	if owner == "" || owner == v.self {
		return ""
	}
	if t.lose(v); t.state == tenureLeaving {
		return owner
	}
	return ""
}

// give lets the channel go as it stands; it returns that, as it is handed.
func (t *tenure) give(to string, revision uint64, from standing, now time.Time) standing {
	t.state, t.to, t.revision, t.gone = tenureGiven, to, revision, now
	if from.epoch == t.floor.epoch {
		from.moves = t.floor.moves
	}
	from.moves++
	t.floor = from
	return from
}

// gaveWithin says that the channel was given less than d ago.
func (t *tenure) gaveWithin(now time.Time, d time.Duration) bool {
	return t.state == tenureGiven && now.Sub(t.gone) < d
}

// asked is the answer to one that owns the channel by its view of a revision.
type asked uint8

const (
	askedNothing   asked = iota // it is not here
	askedGive                   // it can be given
	askedLater                  // it may come here or to the asker yet, or the asker owns it no more
	askedElsewhere              // it was given to another: the second result
)

// ask answers a Take. moving: a hand of the channel was not answered yet.
func (t *tenure) ask(v *sight, from string, revision uint64, moving bool) (asked, string) {
	if owner := t.owner(v); owner != from && owner != "" && revision <= max(v.revision, t.revision) {
		return askedLater, "" // the asker sees less than we do: it will see
	}
	switch {
	case moving && t.state != tenureHeld && t.state != tenureLeaving:
		return askedLater, ""
	case v.known && (t.state == tenureHeld || t.state == tenureLeaving || t.state == tenureAwaiting && t.kept):
		return askedGive, ""
	case t.state == tenureAwaiting:
		return askedLater, ""
	case t.state == tenureGiven && t.to != from:
		return askedElsewhere, t.to
	}
	return askedNothing, ""
}

// accept takes a hand, or refuses it (false) as late or known. have: what is here of
// the channel counts, and is not older.
func (t *tenure) accept(v *sight, revision uint64, p standing, have bool) bool {
	if have || t.floor.epoch != 0 && !p.after(t.floor) {
		return false
	}
	t.to, t.revision, t.floor = v.self, revision, p
	t.hold(v)
	return true
}
