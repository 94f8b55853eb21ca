package channel

import "github.com/spillway-io/spillway/router/history"

// Position is an epoch with an offset in it; positions of one channel are ordered.
type Position struct{ Epoch, Offset uint64 }

// Above says that p is newer than q.
func (p Position) Above(q Position) bool {
	return p.Epoch > q.Epoch || p.Epoch == q.Epoch && p.Offset > q.Offset
}

// Max is the newer of the two.
func (p Position) Max(q Position) Position {
	if q.Above(p) {
		return q
	}
	return p
}

// maxClaim bounds the epochs that edges may claim to have seen, far below the last one:
// a renewal must leave room above itself.
const maxClaim = history.MaxEpoch / 2

// claim is what an edge has seen of a channel, if it can be.
func claim(epoch, offset uint64) Position {
	if epoch > maxClaim {
		return Position{}
	}
	return Position{epoch, offset}
}
