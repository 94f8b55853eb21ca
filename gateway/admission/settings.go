package admission

import (
	"errors"
	"fmt"
	"time"
)

// Settings can be changed while an edge runs (Gate.Set).
type Settings struct {
	FreshPerSecond  int // clients without a ticket
	FreshBurst      int // of them at once, after a quiet time
	ResumePerSecond int // clients with a ticket
	ResumeBurst     int // of them at once
	MovedPerSecond  int // most that grants may add up to

	RegionFreshPerSecond  int // of all edges of the region together; 0: no such bound
	RegionResumePerSecond int // the same for resumes; 0: no such bound

	Wait       time.Duration // longest wait for a turn; 0: nobody waits
	MaxWaiting int           // clients in the waiting room, all lanes
	Adaptive   bool          // lower the resume and fresh lanes under load
	Off        bool          // admit whoever there is room for; for comparisons only

	CriticalReserve int // of the headroom, kept for critical clients
	ForeignPercent  int // of the headroom, what another region's clients may be granted
}

// Default returns the settings of a production edge.
func Default() Settings {
	return Settings{
		FreshPerSecond: 100, FreshBurst: 200, ResumePerSecond: 300, ResumeBurst: 30, MovedPerSecond: 500,
		Wait: 3 * time.Second, MaxWaiting: 4096, Adaptive: true, CriticalReserve: 100, ForeignPercent: 80,
	}
}

// maxWait: old clients give up after 5 s; a longer wait serves nobody.
const maxWait = 30 * time.Second

// Validate reports every problem at once, as key, value, rule.
func (s Settings) Validate() error {
	var errs []error
	bad := func(key string, value any, rule string) {
		errs = append(errs, fmt.Errorf("admission.%s: %v: %s", key, value, rule))
	}
	for _, p := range []struct {
		key   string
		value int
	}{
		{"fresh_per_second", s.FreshPerSecond}, {"fresh_burst", s.FreshBurst}, {"resume_per_second", s.ResumePerSecond},
		{"resume_burst", s.ResumeBurst}, {"moved_per_second", s.MovedPerSecond}, {"max_waiting", s.MaxWaiting},
	} {
		if p.value <= 0 {
			bad(p.key, p.value, "must be above 0")
		}
	}
	for _, p := range []struct {
		key   string
		value int
	}{
		{"region_fresh_per_second", s.RegionFreshPerSecond}, {"region_resume_per_second", s.RegionResumePerSecond},
		{"critical_reserve", s.CriticalReserve},
	} {
		if p.value < 0 {
			bad(p.key, p.value, "must not be negative")
		}
	}
	if s.Wait < 0 || s.Wait > maxWait {
		bad("wait", s.Wait, "must be between 0s and 30s")
	}
	if s.ForeignPercent < 0 || s.ForeignPercent > 100 {
		bad("foreign_percent", s.ForeignPercent, "must be between 0 and 100")
	}
	return errors.Join(errs...)
}
