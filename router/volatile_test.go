package router

import "testing"

// Of one view no epoch is begun twice: neither after one that was begun behind another,
// nor after very many evictions.
func TestEpochsOfOneViewAreBegunOnce(t *testing.T) {
	s := start(t, nil, nil).sequencer
	last := uint64(0)
	begin := func(after uint64) {
		t.Helper()
		epoch := s.nextEpoch(after)
		if epoch <= last {
			t.Fatalf("epoch %d is begun after %d", epoch, last)
		}
		last = epoch
		s.table.volatile() // its channel is evicted
	}
	for range 100 {
		begin(last)
		begin(0)
	}
	s.generation.Store(1<<epochShift - 10)
	for range 100 {
		begin(0)
	}
}
