package machine

import "time"

// Move tells of a step to another edge that a server asked for. The application
// sees nothing of it otherwise: the client stays CONNECTED, and every stream goes on.
type Move struct {
	Reason   string // the server's word: drain, rebalance …
	From, To string // nodes; To is empty if this attempt failed
	Attempts int    // so far, this one included
	// Took is the time from the server's word to `connected` at the other edge.
	Took time.Duration
	Err  error // why this attempt failed; it is repeated while the edge's deadline allows
}

// Stats counts. Moves + Interruptions is how often the edge changed.
type Stats struct {
	Attempts      uint64 // connections opened, or tried
	Failures      uint64 // of them, that ended before `connected`
	Busy          uint64 // of them, that were told to come later
	Connects      uint64 // `connected` was read
	Resumes       uint64 // of them, with a ticket accepted
	Interruptions uint64 // CONNECTED became RECONNECTING
	Moves         uint64 // finished: the other edge had taken over before the old connection ended
	MoveFailures  uint64 // attempts to move that failed or led to the same node
	FallBacks     uint64 // the other edge was lost while taking over; the old one went on
	TokenCalls    uint64 // questions to the token provider
	Events        uint64 // delivered
	Duplicates    uint64 // dropped: at or below the position
	Gaps          uint64 // told
}

// Info is what the newest `connected` told.
type Info struct {
	Session, Node, Region string
}
