// Package leave moves an edge's clients to other edges: all of them when it drains or its
// region is evacuated, the surplus when it has more than its share, and one at a time when
// a connection is old or was brought here by an evacuation that is over. Each of the first
// three is a departure; at most one is under way.
//
// The edge makes a Governor, adds its loops, and runs it. The governor follows the
// cluster's operations, drives a plan (presence/drain) and asks other edges for room. It
// never touches a conn: it posts orders to the loops and reads the counts that they keep.
// Each loop owns a Part, which knows the conns of the departure under way by class, and
// carries orders out on the loop's goroutine through the interfaces Conns and Conn. Answer
// serves the questions of other edges that leave.
//
//	governor.go  serving, leaving, evacuated: what is due now
//	drain.go, evacuate.go, rebalance.go  the three kinds of departure; age.go: one at a time
//	departure.go  what governor and loops share of one; driver.go: its plan carried out
//	part.go, orders.go  the loops' side
//	grants.go  questions to other edges, and theirs
//	records.go, progress.go  the operation's record, figures for routers and metrics
//
// Life and goroutines: Run is one goroutine and returns when the edge has left. A question
// to another edge and the writing of a record have goroutines with deadlines, for which
// Run waits. Answer runs until its context ends.
//
// Invariants: moved + closed + stragglers + gone + remaining = total; a client is hinted
// only to an address that targets allows (I12); the deadline holds whatever is away, bus,
// registry or other edges. Limits: 256 questions under way, 2,048 conns looked at and 256
// closed in one turn of a loop, 4,096 client addresses in one confirmation.
//
// It leaves out on purpose who goes where and when (presence/drain), which edges there are
// (targets), and what a hint or a close looks like on the wire (the edge's conns).
package leave
