package feed

// repairs is a shard's share of the repair budget: how many channels may begin
// in a second, and how many chunks may be in flight. Owned by the shard.
type repairs struct {
	rate    float64 // channels a second
	burst   float64
	tokens  float64
	most    int     // chunks in flight
	running int     // of them; each turn has one at a time
	queue   []*feed // wait for their turn, first come first served
}

func newRepairs(cfg *Config, shards int) repairs {
	rate := float64(cfg.RepairRate) / float64(shards)
	burst := max(rate/4, 1)
	return repairs{rate: rate, burst: burst, tokens: burst, most: max(cfg.RepairBytes/cfg.ChunkBytes/shards, 1)}
}

func (r *repairs) refill(seconds float64) { r.tokens = min(r.tokens+r.rate*seconds, r.burst) }

// take takes a turn if there is one.
func (r *repairs) take() bool {
	if r.tokens < 1 || r.running == r.most {
		return false
	}
	r.tokens--
	r.running++
	return true
}

func (r *repairs) done() { r.running-- }

// wantTurn lets f repair now, or queues it.
func (s *shard) wantTurn(f *feed) {
	if len(s.repairs.queue) == 0 && s.repairs.take() {
		f.turn(&s.step)
		return
	}
	f.wait(&s.step)
	s.repairs.queue = append(s.repairs.queue, f)
}

// grant gives turns to those who wait.
func (s *shard) grant() {
	for len(s.repairs.queue) > 0 {
		f := s.repairs.queue[0]
		wants := !f.gone && f.work != nil && f.work.repair == repairQueued
		if wants && !s.repairs.take() {
			return
		}
		s.repairs.queue[0] = nil
		s.repairs.queue = s.repairs.queue[1:]
		if wants {
			f.turn(&s.step)
			s.finish(f)
		}
	}
	s.repairs.queue = nil
}
