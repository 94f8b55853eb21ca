package leave

import (
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// departure is one operation in which clients leave this edge for others: a drain, its
// part of an evacuation, a rebalance. The governor plans (drain.Plan), the loops know the
// conns; they share this.
type departure struct {
	// immutable
	operation   string
	edge        string // this one
	incarnation uint64
	reason      string    // told to clients
	opStart     time.Time // of the operation
	start       time.Time
	surplus     bool // only parts[i].quota conns of each loop, and none twice in a while
	below       int  // with surplus: receivers are filled up to this only
	parts       []share
	named       bool // receivers that end TLS are told where clients come from

	sources sources

	// owned by the governor
	message string // the last thing that its starter should know
	plan    planned

	// atomic
	length                          atomic.Int64 // from start to the last close, nanoseconds
	moved, closed, stragglers, gone atomic.Int64
}

// planned is what was last known of a plan: when it is over there is none.
type planned struct {
	granted, missing   uint32
	endMS              uint32 // planned end, from the start of the operation
	perSecond, highest float64
}

// note takes in what the plan says now, and returns its message. Without anything to
// hand out it plans nothing.
func (d *departure) note(p *drain.Plan) (message string) {
	var f gatewayv1.Progress
	p.Report(&f, d.opStart)
	n := &d.plan
	if f.GrantedPerSecond > 0 || f.Missing > 0 || n.endMS == 0 {
		n.endMS = f.PlannedMs
	}
	n.granted, n.missing, n.perSecond = f.Granted, f.Missing, f.GrantedPerSecond
	n.highest = max(n.highest, n.perSecond)
	return f.Message
}

// share is what one loop has in a departure.
type share struct {
	quota int // immutable; with surplus

	// atomic, written by the loop. here: by class, those who are still here.
	here [numClasses]atomic.Int64
	// served is how many clients the governor's orders were for, carried out or not.
	served [numClasses]atomic.Int64

	// owned by the governor; ordered - served are on their way
	ordered [numClasses]int64
}

// class is where a conn stands in a departure.
//
//	critical, movable --hint, with a grant--> hinted ----+
//	       ^    |                               |        |
//	       |    +--hint, without one--> unplaced|        +--> gone: its client moved, was
//	       +------ its target is gone ----------+        |    closed, or went by itself
//	unmovable -------------------------------------------+
type class uint8

const (
	classNone      class = iota // not in it
	classCritical               // can move, not hinted; goes first
	classMovable                // can move, not hinted
	classUnmovable              // cannot move: closed at its slot
	classHinted                 // hinted, room is held for it elsewhere; still here
	classUnplaced               // hinted without a grant: closed after its grace
	numClasses
)

// free is how many of a class a loop has that no order is under way for.
func (p *share) free(k class) int {
	return int(max(p.here[k].Load()-(p.ordered[k]-p.served[k].Load()), 0))
}

// counts are the clients still here, as the plan wants them.
func (d *departure) counts() drain.Counts {
	var n drain.Counts
	for i := range d.parts {
		p := &d.parts[i]
		n.Critical += p.free(classCritical)
		n.Movable += p.free(classMovable)
		n.Unmovable += p.free(classUnmovable)
		n.Hinted += p.free(classHinted)
	}
	return n
}

// setEnd says when the last close is due.
func (d *departure) setEnd(end time.Time) { d.length.Store(int64(end.Sub(d.start))) }

func (d *departure) endTime() time.Time { return d.start.Add(time.Duration(d.length.Load())) }

// tail is when the closes of stragglers begin.
func (d *departure) tail() time.Time { return d.start.Add(time.Duration(d.length.Load() * 9 / 10)) }

// all sums a class over the loops.
func (d *departure) all(k class) int64 {
	n := int64(0)
	for i := range d.parts {
		n += d.parts[i].here[k].Load()
	}
	return n
}

func (d *departure) remaining() int64 {
	n := int64(0)
	for k := classCritical; k < numClasses; k++ {
		n += d.all(k)
	}
	return n
}

// split splits an order for n of some classes over the loops, whose conns run out
// together, and counts them as ordered: slot i goes to the loop that is named.
func (d *departure) split(n int, classes ...class) (loops []int, of []class) {
	free := make([][]int, len(d.parts))
	for i := range d.parts {
		free[i] = make([]int, len(classes))
		for j, k := range classes {
			free[i][j] = d.parts[i].free(k)
		}
	}
	for range n {
		best, at := -1, 0
		for j := range classes { // the first class goes first, whatever loop has it
			for i := range free {
				if free[i][j] > 0 && (best < 0 || free[i][j] > free[best][j]) {
					best, at = i, j
				}
			}
			if best >= 0 {
				break
			}
		}
		if best < 0 {
			break
		}
		free[best][at]--
		d.parts[best].ordered[classes[at]]++
		loops, of = append(loops, best), append(of, classes[at])
	}
	return loops, of
}
