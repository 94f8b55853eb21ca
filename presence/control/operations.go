package control

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// keepEnded is how long an operation can be read after its end, maxEnded how many.
	keepEnded = 24 * time.Hour
	maxEnded  = 1_000
	// overdue is what a running operation gets beyond its deadline; who should have
	// ended it is gone.
	overdue = 10 * time.Minute
	// maxOperationBytes bounds a record: ten thousand figures of edges.
	maxOperationBytes = 1 << 20
)

// ErrConflict is what every ConflictError is.
var ErrConflict = errors.New("another operation is running there")

// ConflictError says which running operation excludes a new one.
type ConflictError struct{ With *gatewayv1.Operation }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("operation %s (%s) is running there", e.With.Id, KindName(e.With.Kind))
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ErrNoOperation says that there is none of that id.
var ErrNoOperation = errors.New("there is no such operation")

// NewOperationID makes an id that sorts by start.
func NewOperationID(now time.Time) string {
	return fmt.Sprintf("%013d-%s", now.UnixMilli(), strings.ToLower(rand.Text()[:4]))
}

// KindName is how people write it.
func KindName(k gatewayv1.OperationKind) string {
	switch k {
	case gatewayv1.OperationKind_OPERATION_KIND_DRAIN:
		return "drain"
	case gatewayv1.OperationKind_OPERATION_KIND_EVACUATE:
		return "evacuate"
	case gatewayv1.OperationKind_OPERATION_KIND_REBALANCE:
		return "rebalance"
	}
	return "unknown"
}

// StateName is how people write it.
func StateName(s gatewayv1.OperationState) string {
	name, ok := strings.CutPrefix(s.String(), "OPERATION_STATE_")
	if !ok {
		return "unknown"
	}
	return strings.ToLower(name)
}

// Ended says that an operation is over: nobody has anything to do for it.
func Ended(op *gatewayv1.Operation) bool {
	return op.State != gatewayv1.OperationState_OPERATION_STATE_RUNNING && op.State != gatewayv1.OperationState_OPERATION_STATE_HELD
}

// excludes says whether a new operation must not begin beside a live one. An edge may
// leave in the middle of a rebalance, which it then ends, and a region may be
// evacuated while edges of it do anything.
func excludes(live, fresh *gatewayv1.Operation) bool {
	const (
		drain    = gatewayv1.OperationKind_OPERATION_KIND_DRAIN
		evacuate = gatewayv1.OperationKind_OPERATION_KIND_EVACUATE
	)
	switch {
	case Ended(live):
		return false
	case live.Kind == evacuate || fresh.Kind == evacuate:
		return live.Kind == fresh.Kind && live.Region == fresh.Region
	case live.Node != fresh.Node:
		return false
	case live.Incarnation != 0 && fresh.Incarnation != 0 && live.Incarnation != fresh.Incarnation:
		return false // that edge is gone
	}
	return fresh.Kind != drain || live.Kind == drain
}

// conflict is the operation that forbids a new one, or nil.
func conflict(all []*gatewayv1.Operation, fresh *gatewayv1.Operation) *gatewayv1.Operation {
	for _, op := range all {
		if op.Id != fresh.Id && excludes(op, fresh) {
			return op
		}
	}
	return nil
}

// allowed says whether an operation may go from one state to another: the end is for
// ever.
func allowed(from, to *gatewayv1.Operation) bool { return from.State == to.State || !Ended(from) }

// forgotten lists ended operations that may be deleted, given all of them.
func forgotten(all []*gatewayv1.Operation, now time.Time) []string {
	var ids []string
	ended := 0
	for _, op := range slices.Backward(sortOperations(all)) {
		if !Ended(op) {
			continue
		}
		if ended++; ended > maxEnded || now.Sub(time.UnixMilli(int64(op.EndedMs))) >= keepEnded {
			ids = append(ids, op.Id)
		}
	}
	return ids
}

// abandoned says that nobody ended a running operation long after its deadline.
func abandoned(op *gatewayv1.Operation, now time.Time) bool {
	end := time.UnixMilli(int64(op.StartedMs)).Add(time.Duration(op.DeadlineMs)*time.Millisecond + overdue)
	return op.State == gatewayv1.OperationState_OPERATION_STATE_RUNNING && now.After(end)
}

// sortOperations returns them by start, the oldest first.
func sortOperations(all []*gatewayv1.Operation) []*gatewayv1.Operation {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *gatewayv1.Operation) int { return strings.Compare(a.Id, b.Id) })
	return sorted
}
