package presence

// transitionKind says what an input did to the view.
type transitionKind int

const (
	transitionNone     transitionKind = iota
	transitionJoined                  // a member that was not there
	transitionReplaced                // a new incarnation of a member that was
	transitionChanged                 // a record says something else
	transitionGone                    // see reason
	transitionLease                   // a lease is gone; the member is still in the view
	transitionBack                    // a lease is there again
	transitionKept                    // held by the half rule
	transitionWentBack                // the registry's revision fell: restored from a backup
)

var transitionMarks = [...]string{
	transitionNone: "?", transitionJoined: "joined", transitionReplaced: "replaced", transitionChanged: "changed", transitionGone: "gone",
	transitionLease: "lease gone", transitionBack: "lease back", transitionKept: "kept", transitionWentBack: "registry went back",
}

func (k transitionKind) String() string { return transitionMarks[k] }

// alters says whether such a transition means another snapshot.
func (k transitionKind) alters() bool { return k >= transitionJoined && k <= transitionGone }

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

// transition is one output of the view.
type transition struct {
	kind   transitionKind
	member *Member // nil: the view as a whole
	reason Departure
	before *Member // transitionReplaced: the one that was
}
