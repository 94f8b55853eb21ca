package gateway

import "sync/atomic"

// counts is how many clients an edge has, of what kind. Atomic; the loops write it.
type counts struct {
	conns      atomic.Int64 // admitted and not superseded
	superseded atomic.Int64 // conns that were left for another one of their session
	movable    atomic.Int64 // conns whose clients can move
	critical   atomic.Int64
	catchingUp atomic.Int64 // connected, and without some of what they missed
	metrics    *metrics
}

func (n *counts) admitted() { n.metrics.conns.Set(float64(n.conns.Add(1))) }

// released counts a conn out.
func (n *counts) released() { n.metrics.conns.Set(float64(n.conns.Add(-1))) }

// session keeps the figures of conns that count.
func (n *counts) session(s *session, by int64) {
	if s.movable {
		n.movable.Add(by)
	}
	if s.claims.Critical {
		n.critical.Add(by)
	}
}

// supersede counts a conn as left for another one, and returns how many there are.
func (n *counts) supersede() int64 {
	n.released()
	left := n.superseded.Add(1)
	n.metrics.superseded.Set(float64(left))
	return left
}

// gone counts out a conn whose socket is closed.
func (n *counts) gone(c *conn) {
	if !c.superseded {
		n.released()
		return
	}
	n.metrics.superseded.Set(float64(n.superseded.Add(-1)))
}

// held is the sockets of admitted clients, those included that were left for another
// conn of their session and count no more.
func (n *counts) held() int64 { return n.conns.Load() + n.superseded.Load() }
