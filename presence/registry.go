package presence

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrBusAway is what parts on the bus say when nothing could be sent at all.
var ErrBusAway = errors.New("bus: not connected")

// Change is news from the registry: a full listing, or one record put or gone.
type Change struct {
	Listed ListReason // not ListNone: List holds every record
	List   []*Member

	Put      *Member
	Deleted  *Key
	Revision int64 // of the registry, after the change
}

// ListReason says why the registry was listed.
type ListReason int

// Reasons. All but ListNone and ListStart mean that a watch was begun anew.
const (
	ListNone        ListReason = iota
	ListStart                  // the first time
	ListReconnected            // the connection was lost: what is behind it may be another store
	ListCompacted              // the watch is behind what the registry remembers
	ListWentBack               // the registry's revision fell: restored
	ListStuck                  // the watch did not keep up with the registry
	ListBroken                 // the watch ended for another reason
	numListReasons
)

func (r ListReason) String() string {
	return [...]string{"none", "start", "reconnected", "compacted", "went_back", "stuck", "broken"}[r]
}

// Registration is what a Registry asks of, and tells, the node whose record it
// keeps. The functions never block and may be called from any goroutine.
type Registration struct {
	Self       func() *Member  // the record as it should be now; the callee's to keep
	Update     <-chan struct{} // says that Self changed
	Registered func()          // after the first write under each lease
	Lost       func()          // the lease was lost, even for a moment
	KeepFailed func()          // a renewal failed; it is tried again
}

// Registry keeps records under leases. Its methods block until ctx ends; both are
// called once, from different goroutines.
type Registry interface {
	// Watch lists, then follows. It survives any absence of the registry, and lists
	// again whenever it may have missed something. changed is called from one
	// goroutine; what it gets is its own.
	Watch(ctx context.Context, changed func(Change)) error
	// Register keeps a record, through any absence of the registry, until ctx ends;
	// then it marks the record left and gives up the lease within two seconds. If
	// a live process has the id when it begins, it ends with a DuplicateError.
	Register(ctx context.Context, r Registration) error
}

// Listener is what LoadFigures ask of, and tell, their node. The functions never
// block and may be called from any goroutine.
type Listener struct {
	Own       func() (*Figure, time.Duration) // the figure to say now, and the time to the next
	Heard     func(*Figure)                   // a figure of anybody, our own included
	Connected func(bool)                      // the state of the connection; repeats are harmless
	Dropped   func(FigureDrop, int)           // so many figures were not passed on
}

// LoadFigures publishes our own load figures and hears those of others. Heard must be
// called for our own figures too: they prove that the bus works.
type LoadFigures interface {
	// Run publishes and hears until ctx ends, through any absence of the bus.
	Run(ctx context.Context, l Listener) error
}

// FigureDrop is why a figure was not passed on.
type FigureDrop int

// Drops.
const (
	DropQueueFull  FigureDrop = iota // came faster than they were taken
	DropUnreadable                   // too long, or not a figure
	numFigureDrops
)

func (d FigureDrop) String() string { return [...]string{"queue_full", "unreadable"}[d] }

// ErrDuplicate is what every DuplicateError is.
var ErrDuplicate = errors.New("member id is already live")

// DuplicateError says that a live process has the member id.
type DuplicateError struct{ Key Key }

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("member id %q is already live", e.Key.ID)
}

// Is makes errors.Is(err, ErrDuplicate) true.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }
