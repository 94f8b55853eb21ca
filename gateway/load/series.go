// Package load keeps what an edge tells of itself in its load figures: what happened to
// its clients, counted in windows of 200 ms.
//
// The door, the loops and the edge count with Add and CameFrom; the edge takes the windows
// out with Tell when membership asks for a figure. The package has no goroutine and no
// clock of its own but the moment it was made, and imports nothing of the edge.
//
// Invariants: a window that was told never changes; a listener that hears figures late, or
// that is new, hears every window of the last ten minutes in the end. Limits: 3,000 windows
// (ten minutes), 64 windows or 24 KiB in one figure, 64 names in one window.
//
// It leaves out on purpose what a window means: the routers add them up.
package load

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// WindowLength is how long a window counts.
const WindowLength = 200 * time.Millisecond

const (
	// windowsKept is ten minutes: what a router that comes new is told again.
	windowsKept = 3_000
	// windowsRepeated are in every figure, heard or not: three seconds, so that a
	// figure that one listener did not get costs him nothing.
	windowsRepeated = 15
	// windowsTold bounds the windows of one figure, windowBytes the size of the recent
	// and that of the repeated ones: a window is as large as the names in it.
	windowsTold = 64
	windowBytes = 24 << 10
	// originsNamed bounds the edges that one window names; others are counted as "".
	// 64 names of 255 bytes are less than windowBytes.
	originsNamed = 64
)

// Series keeps what happened at an edge in windows of 200 ms. The door, the pool
// and the loops note what they do, once or twice a conn, never a frame; the load
// figure takes the windows out. Its clock starts with the wall's and never jumps.
//
// A figure has the windows of the last three seconds and, from the oldest on, those
// that no figure told which came back to us from the bus (stop and wait: one
// figure a second at most). A router that comes new makes it tell all ten minutes
// again. Whoever hears a window twice counts it once, by its start.
type Series struct {
	born time.Time // immutable

	mu      sync.Mutex // guards all below; a leaf, held for a few loads and stores
	ring    []window
	newest  int64  // number of the newest window that was touched
	untold  int64  // first window that no figure told which was heard
	told    uint64 // seq of the last figure
	through int64  // that figure told all windows before this one
	routers map[string]uint64
}

// window is number n: from n * 200 ms on, Unix time.
type window struct {
	n      int64
	counts [numCounts]uint32
	from   map[string]uint32
}

// Count is one thing that a window counts.
type Count int

const (
	Moved    Count = iota // admitted as moved by another edge
	Resumed               // admitted by a ticket of its session
	Fresh                 // admitted without either
	Refused               // for load, and told when to come back
	Reset                 // for load, with nothing told
	Lost                  // gone without having been told to go
	Left                  // gone after it was told to go
	Shut                  // closed because the edge leaves
	Closed                // closed for another cause of ours
	Hinted                // told to go to another edge
	CaughtUp              // has what it missed
	numCounts
)

func New(now time.Time) *Series {
	s := &Series{born: now, ring: make([]window, windowsKept)}
	s.newest = s.number(now)
	s.untold = s.newest
	s.through = s.newest
	return s
}

// number is that of the window of a moment; it uses the monotonic clock.
func (s *Series) number(now time.Time) int64 {
	return (s.born.UnixNano() + int64(now.Sub(s.born))) / int64(WindowLength)
}

// Add counts one thing now.
func (s *Series) Add(what Count) {
	at := s.number(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.at(at); w != nil {
		w.counts[what]++
	}
}

// CameFrom counts a client that resumed, by the edge that its ticket names.
func (s *Series) CameFrom(from string) {
	at := s.number(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.at(at)
	if w == nil {
		return
	}
	if w.from == nil {
		w.from = make(map[string]uint32, 1)
	}
	if _, named := w.from[from]; !named && len(w.from) >= originsNamed {
		from = ""
	}
	w.from[from]++
}

// at is the window with a number, emptied if it held an older one; nil: that number
// is older than what is kept.
func (s *Series) at(n int64) *window {
	w := &s.ring[int(n%windowsKept)]
	if w.n > n {
		return nil
	}
	if w.n != n {
		*w = window{n: n}
	}
	s.newest = max(s.newest, n)
	return w
}

// Tell returns the windows for figure seq: whole ones, oldest first, empty ones left
// out but for the last, which is the edge's clock. heard is the seq of our newest
// figure that came back from the bus, 0: none ever did; routers are those that
// listen, with their incarnations.
func (s *Series) Tell(seq, heard uint64, routers map[string]uint64, now time.Time) []*gatewayv1.Window {
	end := s.number(now) // this one is not whole yet
	s.mu.Lock()
	defer s.mu.Unlock()
	if heard == 0 || heard == s.told {
		s.untold = s.through
	}
	for id, incarnation := range routers {
		if s.routers[id] != incarnation {
			s.untold = 0
		}
	}
	s.routers = routers
	s.untold = max(s.untold, end-windowsKept+1)

	last, recent := s.recent(end)
	var before []*gatewayv1.Window
	n, size := s.untold, 0
	for ; n < recent && len(before)+len(last) < windowsTold; n++ {
		m := s.message(n)
		if m == nil {
			continue
		}
		if size += proto.Size(m); size > windowBytes {
			break
		}
		before = append(before, m)
	}
	if s.told, s.through = seq, n; n >= recent {
		s.through = end
	}
	return append(before, last...)
}

// recent returns the newest windows before end, and the number of the first of them:
// fewer where they are large, but always the last one, empty or not.
func (s *Series) recent(end int64) (windows []*gatewayv1.Window, first int64) {
	size := 0
	for first = end; first > end-windowsRepeated; first-- {
		m := s.message(first - 1)
		if m == nil && first == end {
			m = &gatewayv1.Window{StartMs: startMS(first - 1)}
		}
		if m == nil {
			continue
		}
		if size += proto.Size(m); size > windowBytes {
			break
		}
		windows = append(windows, m)
	}
	slices.Reverse(windows)
	return windows, first
}

func startMS(n int64) uint64 { return uint64(n) * uint64(WindowLength/time.Millisecond) }

// message is window n, nil if nothing happened in it.
func (s *Series) message(n int64) *gatewayv1.Window {
	w := &s.ring[int(n%windowsKept)]
	if w.n != n || w.counts == [numCounts]uint32{} && w.from == nil {
		return nil
	}
	m := &gatewayv1.Window{
		StartMs: startMS(n),
		Moved:   w.counts[Moved], Resumed: w.counts[Resumed], Fresh: w.counts[Fresh],
		Refused: w.counts[Refused], Reset_: w.counts[Reset],
		Lost: w.counts[Lost], Left: w.counts[Left], Shut: w.counts[Shut], Closed: w.counts[Closed],
		Told: w.counts[Hinted], CaughtUp: w.counts[CaughtUp],
	}
	if len(w.from) > 0 {
		m.From = make(map[string]uint32, len(w.from))
		for edge, n := range w.from {
			m.From[edge] = n
		}
	}
	return m
}
