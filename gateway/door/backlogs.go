package door

import (
	"sync"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// backlogs is what the region's other edges told of theirs, so that newcomers are sent
// from an edge that most came to, by chance or by its balancer, to others. Load figures
// are too slow for it: a timetable is full two seconds after a loss.
type backlogs struct {
	mu     sync.Mutex // guards all below
	others map[string]*backlog
}

// backlog is that of one edge with room.
type backlog struct {
	figure time.Duration // of its last load figure
	told   time.Duration
	at     time.Time // of told
}

// backlogLife is how long what was told counts; after that the load figure does.
const backlogLife = time.Second

// see takes those with room, and what their figures say; once a second.
func (b *backlogs) see(figures map[string]time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.others
	b.others = make(map[string]*backlog, len(figures))
	for id, figure := range figures {
		if b.others[id] = before[id]; b.others[id] == nil {
			b.others[id] = new(backlog)
		}
		b.others[id].figure = figure
	}
}

func (b *backlogs) hear(edge string, told time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.others[edge]; o != nil {
		o.told, o.at = told, now
	}
}

// mean of all; known: there are any.
func (b *backlogs) mean(now time.Time) (mean time.Duration, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.others {
		if now.Sub(o.at) < backlogLife {
			mean += o.told
		} else {
			mean += o.figure
		}
	}
	return mean / time.Duration(max(len(b.others), 1)), len(b.others) > 0
}

// Compare has the gate compare its backlog with the others', who hear of it with the
// next batch that edges tell each other; heard: they do hear, the bus is there.
func (g *Gate) Compare(heard bool) (own time.Duration) {
	mean, known := g.backlogs.mean(time.Now())
	g.with(func(inner *admission.Gate, _ int, now time.Time) {
		inner.Compare(mean, known && heard, now)
		own, _ = inner.Backlog(now)
	})
	return own
}

// HearBacklog takes what another edge told of its backlog.
func (g *Gate) HearBacklog(edge string, told time.Duration) { g.backlogs.hear(edge, told, time.Now()) }
