package admission

import (
	"slices"
	"time"
)

// nonces remembers used passes until they are dead: each is good once at an edge.
type nonces struct {
	at    map[uint64]time.Time
	order []uint64
}

// maxNonces bounds them: at 800 passes a second far more than PassLife can hold.
const maxNonces = 64 << 10

func newNonces() nonces { return nonces{at: make(map[uint64]time.Time)} }

// add notes a nonce; false: it was used.
func (n *nonces) add(nonce uint64, now time.Time) bool {
	old := 0
	for old < len(n.order) && (len(n.order)-old >= maxNonces || now.Sub(n.at[n.order[old]]) > 2*PassLife) {
		delete(n.at, n.order[old])
		old++
	}
	n.order = slices.Delete(n.order, 0, old)
	if _, was := n.at[nonce]; was {
		return false
	}
	n.at[nonce] = now
	n.order = append(n.order, nonce)
	return true
}
