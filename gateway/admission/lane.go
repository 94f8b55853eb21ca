package admission

// Lane is the way in that a client's ticket decides. The zero value is none. The rates of
// lanes are in gate.go; gateway/door/request.go finds out which lane a client takes.
type Lane uint8

// Lanes, in the order in which they are served.
const (
	LaneNone   Lane = iota
	LaneMoved       // comes on a confirmed grant
	LaneResume      // has a ticket
	LaneFresh       // has none
	numLanes
)

var laneNames = [numLanes]string{"none", "moved", "resume", "fresh"}

// String is the metric's label.
func (l Lane) String() string {
	if l >= numLanes {
		return "none"
	}
	return laneNames[l]
}

// Lanes are all lanes in the order in which they are served.
func Lanes() []Lane { return []Lane{LaneMoved, LaneResume, LaneFresh} }

// Cause is why somebody was refused. The zero value is "not refused".
type Cause uint8

// Causes.
const (
	CauseNone     Cause = iota
	CauseRate           // the lane could not serve it within Wait
	CauseWaited         // it waited, and its turn did not come
	CauseFull           // no room for another conn
	CauseDraining       // this edge is leaving
	CauseEarly          // its pass is not good yet
	CauseBusy           // the caller turned it away
	numCauses
)

var causeNames = [numCauses]string{"none", "rate", "waited", "full", "draining", "early", "busy"}

// String is the metric's label.
func (c Cause) String() string {
	if c >= numCauses {
		return "none"
	}
	return causeNames[c]
}

// Causes are all causes of a refusal.
func Causes() []Cause {
	return []Cause{CauseRate, CauseWaited, CauseFull, CauseDraining, CauseEarly, CauseBusy}
}

// Verdict is what becomes of an arrival. The zero value is safe: nobody is let in.
type Verdict uint8

// Verdicts.
const (
	Refuse Verdict = iota
	Wait           // Serve will say more, unless Gone is called before
	Admit
)

func (v Verdict) String() string {
	if v > Admit {
		return "refuse"
	}
	return [...]string{"refuse", "wait", "admit"}[v]
}
