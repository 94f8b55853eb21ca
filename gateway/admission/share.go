package admission

import (
	"slices"
	"time"
)

// memberMemory is how long a lost member still counts: survivors must not take its
// part of a rate while its clients come to them.
const memberMemory = 10 * time.Minute

// Peer is one edge of the own region, this one included.
type Peer struct {
	ID       string
	Draining bool
}

// Share counts among how many edges a region's rate is divided: the most that were
// seen in the last ten minutes, without those that left in order.
type Share struct {
	present map[string]bool // id: draining
	lost    []time.Time     // when each that is missing was last seen, oldest first
	seen    time.Time
}

// Seen takes who is there now. Call it at every change and now and then.
func (s *Share) Seen(peers []Peer, now time.Time) {
	before, joined := s.present, 0
	s.present = make(map[string]bool, len(peers))
	for _, p := range peers {
		if _, had := before[p.ID]; !had && before != nil {
			joined++
		}
		s.present[p.ID] = p.Draining
	}
	for id, draining := range before {
		if _, still := s.present[id]; !still && !draining {
			s.lost = append(s.lost, s.seen)
		}
	}
	s.seen = now
	// Who joins takes the place of one that was lost.
	s.lost = s.lost[min(joined, len(s.lost)):]
	s.expire(now)
}

func (s *Share) expire(now time.Time) {
	s.lost = slices.DeleteFunc(s.lost, func(t time.Time) bool { return now.Sub(t) >= memberMemory })
}

// Members is the number to divide by, at least 1.
func (s *Share) Members(now time.Time) int {
	s.expire(now)
	return max(len(s.present)+len(s.lost), 1)
}

// of is this edge's part of a region's rate and its own rate: the smaller one.
func (s *Share) of(own, region int, now time.Time) float64 {
	if region <= 0 {
		return float64(own)
	}
	return min(float64(own), float64(region)/float64(s.Members(now)))
}
