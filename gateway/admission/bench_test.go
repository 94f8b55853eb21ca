package admission

import (
	"testing"
	"time"
)

// An arrival that is admitted, and one that is refused with a slot.
func BenchmarkArrive(b *testing.B) {
	open := Default()
	open.FreshPerSecond, open.FreshBurst = 1<<30, 1<<30
	for name, set := range map[string]Settings{"admitted": open, "refused": Default()} {
		b.Run(name, func(b *testing.B) {
			s := newSim(set)
			b.ReportAllocs()
			for i := range b.N {
				s.now = s.now.Add(time.Microsecond)
				s.g.Arrive(Arrival{ID: uint64(i), Lane: LaneFresh, Obeys: true}, 0, s.now)
			}
		})
	}
}
