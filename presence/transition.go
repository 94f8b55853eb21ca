package presence

// noteKind says what an input did to the view.
type noteKind int

const (
	noteNone     noteKind = iota
	noteJoined            // a member that was not there
	noteReplaced          // a new incarnation of a member that was
	noteChanged           // a record says something else
	noteGone              // see reason
	noteLease             // a lease is gone; the member is still in the view
	noteBack              // a lease is there again
	noteKept              // held by the half rule
	noteWentBack          // the registry's revision fell: restored from a backup
)

var noteMarks = [...]string{
	noteNone: "?", noteJoined: "joined", noteReplaced: "replaced", noteChanged: "changed", noteGone: "gone",
	noteLease: "lease gone", noteBack: "lease back", noteKept: "kept", noteWentBack: "registry went back",
}

func (k noteKind) String() string { return noteMarks[k] }

// alters says whether such a note means another snapshot.
func (k noteKind) alters() bool { return k >= noteJoined && k <= noteGone }

// Departure is why a member is gone.
type Departure int

// Departures. The zero value is none.
const (
	DepartureNone   Departure = iota
	DepartureLeft             // deregistered
	DepartureSilent           // no lease, and silent on the bus
	DepartureLease            // no lease, and our own bus is down: nothing else to go by
	numDepartures
)

func (d Departure) String() string { return [...]string{"", "left", "silent", "lease"}[d] }

// note is one output of the view.
type note struct {
	kind   noteKind
	member *Member // nil: the view as a whole
	reason Departure
	before *Member // noteReplaced: the one that was
}
