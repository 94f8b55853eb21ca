package door

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Gate is the edge's admission.Gate for all who need it: the door decides arrivals, the
// bus asks for grants, the load figure and /v1/connect ask how things are, and loops tell
// how late they are. Each call takes microseconds, and any goroutine may make it.
type Gate struct {
	// immutable
	cfg     *Config
	deps    *Deps
	metrics *metrics
	fdRoom  int                                     // conns that descriptors allow
	expect  func(sources []string, until time.Time) // clients of a grant; nil: the edge ends no TLS

	// atomic
	settings atomic.Pointer[settings.Hot] // replaced by Set
	leaving  atomic.Bool
	memory   *memory       // conns that memory allows
	signals  signals       // what the adaptive ceiling goes by
	returns  atomic.Uint64 // float64: resumes a second that the region's other edges admit

	backlogs backlogs

	mu    sync.Mutex // guards inner; a leaf, nothing is called while it is held
	inner *admission.Gate
}

func newGate(cfg *Config, deps *Deps, s settings.Hot, m *metrics) *Gate {
	g := &Gate{cfg: cfg, deps: deps, metrics: m, fdRoom: descriptorRoom(cfg.MaxHandshakes), memory: newMemory(cfg.TLS != nil)}
	g.settings.Store(&s)
	g.memory.look(s.MaxMemoryBytes, 0)
	g.inner = admission.New(s.Admission, g.Capacity(), cfg.Region, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), time.Now())
	if g.fdRoom < s.MaxConns {
		cfg.Log.Warn("descriptors allow fewer connections than limits.max_conns", "descriptors_allow", g.fdRoom, "max_conns", s.MaxConns)
	}
	if room := g.memory.room.Load(); room < int64(s.MaxConns) {
		cfg.Log.Warn("memory allows fewer connections than limits.max_conns", "memory_allows", room, "max_conns", s.MaxConns)
	}
	return g
}

// memoryRoom is what the metric tells: no more than there could be.
func (g *Gate) memoryRoom() int {
	return min(int(g.memory.room.Load()), g.settings.Load().MaxConns)
}

// Capacity is what settings, descriptors and memory allow together.
func (g *Gate) Capacity() admission.Capacity {
	s := g.settings.Load()
	most := min(s.MaxConns, g.fdRoom, int(g.memory.room.Load()))
	return admission.Capacity{MaxConns: most, Margin: min(s.Margin, most-1)}
}

// with runs f with the inner gate, which knows by then whether this edge is leaving.
func (g *Gate) with(f func(inner *admission.Gate, conns int, now time.Time)) {
	leaving, conns := g.leaving.Load(), g.deps.Conns()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inner.SetDraining(leaving)
	f(g.inner, conns, time.Now())
}

// Set puts other settings in force, whole. No socket is touched.
func (g *Gate) Set(s settings.Hot) {
	g.settings.Store(&s)
	g.memory.look(s.MaxMemoryBytes, g.deps.Conns())
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.Set(s.Admission, g.Capacity(), now) })
}

// SetLeaving says whether this edge leaves, so that newcomers are refused.
func (g *Gate) SetLeaving(on bool) { g.leaving.Store(on) }

// Leaving says whether it does.
func (g *Gate) Leaving() bool { return g.leaving.Load() }

func (g *Gate) arrive(a admission.Arrival) (d admission.Decision) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { d = inner.Arrive(a, conns, now) })
	return d
}

func (g *Gate) turnAway(a admission.Arrival) (d admission.Decision) {
	g.with(func(inner *admission.Gate, _ int, now time.Time) { d = inner.TurnAway(a, now) })
	return d
}

// serve appends what becomes of those who wait, and when to ask again.
func (g *Gate) serve(dst []admission.Decision) (decided []admission.Decision, again time.Duration) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) {
		decided = inner.Serve(dst, conns, now)
		again = inner.Next(now)
	})
	return decided, again
}

func (g *Gate) hungUp(id uint64) {
	g.with(func(inner *admission.Gate, _ int, _ time.Time) { inner.Gone(id) })
}

func (g *Gate) advise() (d admission.Decision) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { d = inner.Advise(conns, now) })
	return d
}

// Status is how things are now.
func (g *Gate) Status() (s admission.Status) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { s = inner.Status(conns, now) })
	return s
}

// MarkBytes is the size of a used ticket's mark among Spent's.
const MarkBytes = 8 // big endian

// Spent takes the marks of tickets that were used at another edge.
func (g *Gate) Spent(marks []byte) {
	twice := 0
	g.with(func(inner *admission.Gate, _ int, now time.Time) {
		for ; len(marks) >= MarkBytes; marks = marks[MarkBytes:] {
			if inner.Spent(binary.BigEndian.Uint64(marks), now) {
				twice++ // it was used here too
			}
		}
	})
	g.metrics.spentTwice.Add(float64(twice))
}

// Offer answers another edge that leaves and asks for room here.
func (g *Gate) Offer(r *gatewayv1.GrantRequest) (o *gatewayv1.GrantOffer) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { o = inner.Offer(r, conns, now) })
	g.metrics.offered(o)
	return o
}

// Confirm keeps or gives back what Offer held.
func (g *Gate) Confirm(c *gatewayv1.GrantConfirm) (held *gatewayv1.GrantConfirmed) {
	g.with(func(inner *admission.Gate, _ int, now time.Time) { held = inner.Confirm(c, now) })
	if held.Held && g.expect != nil {
		const late = 15 * time.Second // a grant is held so long after its last slot
		g.expect(c.Sources, time.Now().Add(time.Duration(c.LastSlotMs)*time.Millisecond+late))
	}
	return held
}

// Look takes in who is there, once a second.
func (g *Gate) Look() {
	var peers []admission.Peer
	others, returns := false, 0.0
	figures := g.deps.Members.Figures()
	backlogs := make(map[string]time.Duration)
	for _, m := range g.deps.Members.Snapshot().Members() {
		if m.Role != gatewayv1.Role_ROLE_EDGE || m.Region != g.cfg.Region || m.Id == g.cfg.ID {
			continue
		}
		draining := m.State == gatewayv1.State_STATE_DRAINING
		if f := figures[presence.KeyOf(m)]; f != nil {
			draining = draining || f.State == gatewayv1.State_STATE_DRAINING
			if !draining && m.State == gatewayv1.State_STATE_SERVING {
				others = others || f.Headroom > 0
				returns += f.ResumePerSecond
				if f.Headroom > 0 && !g.deps.Targets.Silent(m) {
					backlogs[m.Id] = admission.BacklogOf(int(f.Passes), f.ResumePerSecond+f.FreshPerSecond)
				}
			}
		}
		peers = append(peers, admission.Peer{ID: m.Id, Draining: draining})
	}
	peers = append(peers, admission.Peer{ID: g.cfg.ID, Draining: g.leaving.Load()})
	g.backlogs.see(backlogs)
	g.returns.Store(math.Float64bits(returns))
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.See(peers, others, now) })
	g.weigh()
}

// weigh measures the memory anew, with the look at the others.
func (g *Gate) weigh() {
	s, before := g.settings.Load(), g.Capacity()
	g.memory.look(s.MaxMemoryBytes, g.deps.Conns())
	if now := g.Capacity(); now != before {
		g.with(func(inner *admission.Gate, _ int, at time.Time) { inner.Set(s.Admission, now, at) })
	}
}

// observe feeds the ceiling with what was seen since the last call.
func (g *Gate) observe() {
	s := g.signals.take()
	if g.deps.Lag != nil {
		s.BackfillLag = g.deps.Lag.BackfillLag()
	}
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.Observe(s, now) })
}

// RetryWindow tells clients over how many milliseconds to spread their return if this
// edge is lost: its conns over the rate at which the region's other edges admit resumes.
// An edge that is alone comes back itself, at its own rate.
func (g *Gate) RetryWindow() uint32 {
	rate := math.Float64frombits(g.returns.Load())
	if rate <= 0 {
		rate = float64(g.settings.Load().Admission.ResumePerSecond)
	}
	window := time.Duration(float64(g.deps.Conns()) / rate * float64(time.Second))
	return uint32(min(max(window, 500*time.Millisecond), 10*time.Second).Milliseconds())
}

// Load fills in what this edge could take.
func (g *Gate) Load(f *presence.Figure) {
	s, c := g.Status(), g.Capacity()
	f.Capacity = uint64(c.MaxConns - c.Margin)
	f.Headroom, f.Granted, f.Passes = uint64(s.Headroom), uint64(max(s.Granted, 0)), uint64(s.Passes)
	f.MovedPerSecond, f.ResumePerSecond, f.FreshPerSecond = s.MovedPerSecond, s.ResumePerSecond, s.FreshPerSecond
}
