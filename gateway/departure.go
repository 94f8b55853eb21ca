package gateway

import (
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// handover is one operation in which this edge hands clients to others: a drain, its
// part of an evacuation, a rebalance. The edge's governor plans (drain.Plan), the
// loops know the conns; they share this. At most one is under way.
type handover struct {
	// immutable
	operation string
	kind      gatewayv1.OperationKind
	reason    string    // told to clients
	cause     string    // "signal", "api", "automatic"
	opStart   time.Time // of the operation
	start     time.Time
	surplus   bool // only parts[i].quota conns of each loop, and none twice in a while
	below     int  // with surplus: receivers are filled up to this only
	parts     []handoverPart
	named     bool // receivers that end TLS are told where clients come from

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
func (h *handover) note(p *drain.Plan) (message string) {
	var f gatewayv1.Progress
	p.Report(&f, h.opStart)
	n := &h.plan
	if f.GrantedPerSecond > 0 || f.Missing > 0 || n.endMS == 0 {
		n.endMS = f.PlannedMs
	}
	n.granted, n.missing, n.perSecond = f.Granted, f.Missing, f.GrantedPerSecond
	n.highest = max(n.highest, n.perSecond)
	return f.Message
}

// handoverPart is what one loop has in it.
type handoverPart struct {
	quota int // immutable; with surplus

	// atomic, written by the loop. here: by class, those who are still here.
	here [numClasses]atomic.Int64
	// served is how many clients the governor's orders were for, carried out or not.
	served [numClasses]atomic.Int64

	// owned by the governor; ordered - served are on their way
	ordered [numClasses]int64
}

// class is what can be done with a conn in a handover.
type class uint8

const (
	classNone      class = iota // not in it
	classCritical               // can move, not told; goes first
	classPlain                  // can move, not told
	classUnmovable              // cannot move: closed at its slot
	classTold                   // told, and still here
	classBare                   // told without a grant: closed after its grace
	numClasses
)

// free is how many of a class a loop has that no order is under way for.
func (p *handoverPart) free(k class) int {
	return int(max(p.here[k].Load()-(p.ordered[k]-p.served[k].Load()), 0))
}

// counts are the clients still here, as the plan wants them.
func (h *handover) counts() drain.Counts {
	var n drain.Counts
	for i := range h.parts {
		p := &h.parts[i]
		n.Critical += p.free(classCritical)
		n.Plain += p.free(classPlain)
		n.Unmovable += p.free(classUnmovable)
		n.Told += p.free(classTold)
	}
	return n
}

// setEnd says when the last close is due.
func (h *handover) setEnd(end time.Time) { h.length.Store(int64(end.Sub(h.start))) }

func (h *handover) endTime() time.Time { return h.start.Add(time.Duration(h.length.Load())) }

// tail is when the closes of stragglers begin.
func (h *handover) tail() time.Time { return h.start.Add(time.Duration(h.length.Load() * 9 / 10)) }

// all sums a class over the loops.
func (h *handover) all(k class) int64 {
	n := int64(0)
	for i := range h.parts {
		n += h.parts[i].here[k].Load()
	}
	return n
}

func (h *handover) remaining() int64 {
	n := int64(0)
	for k := classCritical; k < numClasses; k++ {
		n += h.all(k)
	}
	return n
}

// share splits an order for n of a class over the loops, whose conns run out
// together, and counts them as ordered: slot i goes to the loop that is named.
func (h *handover) share(n int, kinds ...class) (loops []int, of []class) {
	free := make([][]int, len(h.parts))
	for i := range h.parts {
		free[i] = make([]int, len(kinds))
		for j, k := range kinds {
			free[i][j] = h.parts[i].free(k)
		}
	}
	for range n {
		best, at := -1, 0
		for j := range kinds { // the first kind goes first, whatever loop has it
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
		h.parts[best].ordered[kinds[at]]++
		loops, of = append(loops, best), append(of, kinds[at])
	}
	return loops, of
}
