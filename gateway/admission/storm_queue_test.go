package admission_test

import "time"

type kind uint8

const (
	evDial      kind = iota // a client begins an attempt
	evArrive                // its request is read by the edge
	evGiveUp                // it hangs up
	evConnected             // it reads `connected`
	evDone                  // an edge has done a handshake's work
	evCompare               // an edge tells its backlog
	evServe                 // an edge looks at its waiting room
	evFigure                // an edge tells its load and looks around
	evTick                  // a leaving edge's plan goes on
	evTold                  // a client reads `reconnect`
	evGrace                 // the edge closes one that was told without a grant
	evLeft                  // a client closes the conn that it has moved from
	evCall                  // anything else
)

// event is 24 bytes and holds no pointer: millions of them cost the collector nothing.
type event struct {
	at      time.Duration
	who     int32 // client, edge, leaver or call
	attempt uint32
	kind    kind
}

// queue is a heap with four children a node.
type queue []event

func (s *storm) push(e event) {
	q := append(s.queue, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 4
		if q[up].at <= e.at {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
	s.queue = q
}

func (q *queue) pop() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= len(h) {
			break
		}
		for c := least + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].at < h[least].at {
				least = c
			}
		}
		if last.at <= h[least].at {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = last
	return first
}

// after does something once, later.
func (s *storm) after(d time.Duration, do func()) {
	var at int32
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
		s.calls[at] = do
	} else {
		at = int32(len(s.calls))
		s.calls = append(s.calls, do)
	}
	s.push(event{at: s.now + d, kind: evCall, who: at})
}
