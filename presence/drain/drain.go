// Package drain plans how an edge moves its clients to others: whom to ask for
// room, whom to send where and when, whom to close. It is pure: no I/O, no clock, no
// goroutine, no lock. Package gateway/leave drives a Plan from one goroutine, about every
// Step (50 ms), and carries out what it says.
//
//	     Tick(counts, receivers)       Offer, Confirmed, Failed
//	                |                            |
//	                v                            v
//	now ----------> Plan: grants, paces, rounds of asking
//	                |
//	                v
//	     Ask, Confirm, Move, Close, CloseHinted, CloseAll
//
// A Plan does not count clients: its driver does, and tells with every Tick who is
// still there. So nothing that happens besides (clients that leave by themselves, a
// loop that found fewer than it was asked for) can make the two disagree.
//
// Invariants: moves to a receiver <= what it confirmed, each no earlier than its
// slot; never a move to a receiver that drains, is silent or is unknown; by End
// everybody was told or closed (unless told otherwise by Config); what is not needed
// is given back.
//
// Left out on purpose: which client goes (the driver takes critical ones first),
// tickets, frames, sockets.
package drain

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Step is how often a Plan wants its Tick, and how far ahead of now it hands out
// slots. A driver that is late loses slots, they never pile up.
const Step = 50 * time.Millisecond

// Config is what a Plan is told once.
type Config struct {
	Operation   string
	Edge        string // who asks
	Incarnation uint64
	Region      string

	Start time.Time // of the first question; notice is over
	End   time.Time // of the last close; the time that the closes need is taken off

	// OneAddress: no edge has an address of its own. A balancer spreads blindly, so
	// the grants of a round are one pool, spent at receivers x the smallest rate.
	OneAddress bool
	// Elsewhere: edges of the own region are no receivers (an evacuation).
	Elsewhere bool
	// GrantedOnly: who has no grant stays. Else they are told without one and closed
	// a while after, evenly over the window.
	GrantedOnly bool
	// KeepStragglers: who was told and does not go stays. Else they are closed over
	// the last tenth of the window.
	KeepStragglers bool
}

// Counts are the clients that are still here, by what can be done with them.
type Counts struct {
	Critical  int // can move, not hinted; they go first
	Movable   int // can move, not hinted
	Unmovable int // cannot move, not closed
	Hinted    int // told to move, not gone
}

func (c Counts) waiting() int { return c.Critical + c.Movable }

// Receiver is another edge as membership and its load figure show it.
type Receiver struct {
	ID             string
	Region         string
	Headroom       int     // clients that it could take, grants taken off
	MovedPerSecond float64 // its moved lane now; 0: not known
	Addressed      bool    // it has an address that clients of this edge may be sent to
	Draining       bool
	Silent         bool // not heard for 3 s on a bus that works
}

// Kind is what an Action asks for.
type Kind uint8

const (
	None        Kind = iota
	Ask              // send Request to edge To
	Confirm          // send Keep to edge To
	Move             // tell Count clients to go to To, critical ones first; "": wherever
	Close            // close Count clients that cannot move
	CloseHinted      // close Count of those hinted, the longest hinted first
	CloseAll         // close whoever is left
	Recall           // those told to go to To who are still here are to be told anew
)

func (k Kind) String() string {
	return [...]string{"none", "ask", "confirm", "move", "close", "close hinted", "close all", "recall"}[min(k, Recall)]
}

// Action is one thing to do now.
type Action struct {
	Kind    Kind
	To      string
	Request *gatewayv1.GrantRequest
	Keep    *gatewayv1.GrantConfirm

	Count int
	First time.Time     // slot of the first; less than Step from now
	Every time.Duration // between the slots
	// Move only. Granted: To's (or somebody's) room is held for them. Else they are to
	// be closed Grace after their slot.
	Granted bool
	Grace   time.Duration
}
