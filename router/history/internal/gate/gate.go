// Package gate lets calls into a store until it is closed, and lets Close wait
// for those still inside. The three stores use it; it starts no goroutine.
//
// Left out on purpose: cancelling what is inside. Every call of a store has a
// context of its own that ends it.
package gate

import "sync"

// Gate counts the calls inside. The zero value is open.
type Gate struct {
	mu     sync.Mutex
	inside int           // guarded by mu
	closed bool          // guarded by mu
	empty  chan struct{} // guarded by mu; made by the first Close that must wait, closed by the last Leave
}

// Enter reports whether the call may go on; if so, Leave must follow.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

// Leave ends what Enter allowed.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// Close lets nobody in any more and waits for those inside. It reports whether
// this call was the one that closed: only that one may free what they used.
func (g *Gate) Close() bool {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	if g.inside > 0 && g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	if empty != nil {
		<-empty
	}
	return first
}
