package gateway

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// gate is the edge's admission.Gate for all who need it: the door decides arrivals,
// the bus asks for grants, the load figure and /v1/connect ask how things are. Each
// call takes microseconds.
type gate struct {
	edge    *Edge
	fdRoom  int           // conns that descriptors allow
	memory  *memory       // conns that memory allows
	signals signals       // what the adaptive ceiling goes by
	returns atomic.Uint64 // float64: resumes a second that the region's other edges admit

	mu    sync.Mutex // guards inner; a leaf, nothing is called while it is held
	inner *admission.Gate
}

func newGate(e *Edge) *gate {
	g := &gate{edge: e, fdRoom: descriptorRoom(e.cfg.MaxHandshakes), memory: newMemory(e.cfg.TLS != nil)}
	s := e.cfg.Settings
	g.memory.look(s.MaxMemoryBytes, 0)
	g.inner = admission.New(s.Admission, g.capacity(s), e.cfg.Region, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), time.Now())
	if g.fdRoom < s.MaxConns {
		e.log.Warn("descriptors allow fewer connections than limits.max_conns", "descriptors_allow", g.fdRoom, "max_conns", s.MaxConns)
	}
	if room := g.memory.room.Load(); room < int64(s.MaxConns) {
		e.log.Warn("memory allows fewer connections than limits.max_conns", "memory_allows", room, "max_conns", s.MaxConns)
	}
	return g
}

// descriptorRoom is how many conns the process may hold beside half-open sockets, the
// reserve, and what else needs descriptors.
func descriptorRoom(handshakes int) int {
	const others = 128 // listeners, the bus, routers, files
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	most := int(min(limit.Cur, math.MaxInt32))
	return max(most-min(handshakes, most/8)-reserved-others, 1)
}

// memoryRoom is what the metric tells: no more than there could be.
func (g *gate) memoryRoom() int {
	return min(int(g.memory.room.Load()), g.edge.settings().MaxConns)
}

func (g *gate) capacity(s Settings) admission.Capacity {
	most := min(s.MaxConns, g.fdRoom, int(g.memory.room.Load()))
	return admission.Capacity{MaxConns: most, Margin: min(s.Margin, most-1)}
}

// with runs f with the inner gate, which knows by then whether this edge is leaving.
func (g *gate) with(f func(inner *admission.Gate, conns int, now time.Time)) {
	draining, conns := g.edge.draining.Load(), int(g.edge.conns.Load())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inner.SetDraining(draining)
	f(g.inner, conns, time.Now())
}

func (g *gate) set(s Settings) {
	g.memory.look(s.MaxMemoryBytes, int(g.edge.conns.Load()))
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.Set(s.Admission, g.capacity(s), now) })
}

func (g *gate) arrive(a admission.Arrival) (d admission.Decision) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { d = inner.Arrive(a, conns, now) })
	return d
}

func (g *gate) turnAway(a admission.Arrival) (d admission.Decision) {
	g.with(func(inner *admission.Gate, _ int, now time.Time) { d = inner.TurnAway(a, now) })
	return d
}

// serve appends what becomes of those who wait, and when to ask again.
func (g *gate) serve(dst []admission.Decision) (decided []admission.Decision, again time.Duration) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) {
		decided = inner.Serve(dst, conns, now)
		again = inner.Next(now)
	})
	return decided, again
}

// spent takes the marks of tickets that were used at another edge; twice of them here
// too.
func (g *gate) spent(marks []byte) (twice int) {
	g.with(func(inner *admission.Gate, _ int, now time.Time) {
		for ; len(marks) >= markBytes; marks = marks[markBytes:] {
			if inner.Spent(binary.BigEndian.Uint64(marks), now) {
				twice++
			}
		}
	})
	return twice
}

func (g *gate) hungUp(id uint64) {
	g.with(func(inner *admission.Gate, _ int, _ time.Time) { inner.Gone(id) })
}

func (g *gate) advise() (d admission.Decision) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { d = inner.Advise(conns, now) })
	return d
}

func (g *gate) status() (s admission.Status) {
	g.with(func(inner *admission.Gate, conns int, now time.Time) { s = inner.Status(conns, now) })
	return s
}

// offerRoom answers another edge that leaves and asks for room here.
func (e *Edge) offerRoom(r *gatewayv1.GrantRequest) (o *gatewayv1.GrantOffer) {
	e.gate.with(func(inner *admission.Gate, conns int, now time.Time) { o = inner.Offer(r, conns, now) })
	e.metrics.offered(o)
	return o
}

// confirmRoom keeps or gives back what offerRoom held.
func (e *Edge) confirmRoom(c *gatewayv1.GrantConfirm) (held *gatewayv1.GrantConfirmed) {
	e.gate.with(func(inner *admission.Gate, _ int, now time.Time) { held = inner.Confirm(c, now) })
	if held.Held && e.door.secure != nil {
		const late = 15 * time.Second // a grant is held so long after its last slot
		e.door.secure.expect(c.Sources, time.Now().Add(time.Duration(c.LastSlotMs)*time.Millisecond+late))
	}
	return held
}

// look takes in who is there, once a second.
func (g *gate) look() {
	e := g.edge
	var peers []admission.Peer
	others, returns := false, 0.0
	figures := e.members.Figures()
	backlogs := make(map[string]time.Duration)
	quiet, _ := e.members.(silences)
	for _, m := range e.members.Snapshot().Members() {
		if m.Role != gatewayv1.Role_ROLE_EDGE || m.Region != e.cfg.Region {
			continue
		}
		draining := m.State == gatewayv1.State_STATE_DRAINING
		if m.Id == e.cfg.ID {
			continue
		}
		if f := figures[keyOf(m)]; f != nil {
			draining = draining || f.State == gatewayv1.State_STATE_DRAINING
			if !draining && m.State == gatewayv1.State_STATE_SERVING {
				others = others || f.Headroom > 0
				returns += f.ResumePerSecond
				if f.Headroom > 0 && (quiet == nil || !quiet.Silent(keyOf(m))) {
					backlogs[m.Id] = admission.BacklogOf(int(f.Passes), f.ResumePerSecond+f.FreshPerSecond)
				}
			}
		}
		peers = append(peers, admission.Peer{ID: m.Id, Draining: draining})
	}
	peers = append(peers, admission.Peer{ID: e.cfg.ID, Draining: e.draining.Load()})
	e.backlogs.see(backlogs)
	g.returns.Store(math.Float64bits(returns))
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.See(peers, others, now) })
	g.weigh()
}

// weigh measures the memory anew, with the look at the others.
func (g *gate) weigh() {
	s := g.edge.settings().Settings
	before := g.capacity(s)
	g.memory.look(s.MaxMemoryBytes, int(g.edge.conns.Load()))
	if now := g.capacity(s); now != before {
		g.with(func(inner *admission.Gate, _ int, at time.Time) { inner.Set(s.Admission, now, at) })
	}
}

// observe feeds the ceiling with what was seen since the last call.
func (g *gate) observe() {
	s := g.signals.take()
	if g.edge.lag != nil {
		s.BackfillLag = g.edge.lag.BackfillLag()
	}
	g.with(func(inner *admission.Gate, _ int, now time.Time) { inner.Observe(s, now) })
}

// Lag tells how far behind the routers are with backfill; it does not block.
type Lag interface {
	// BackfillLag is the worst that a router told of late; 0: none.
	BackfillLag() time.Duration
}

// retryWindow tells clients over how long to spread their return if this edge is
// lost: its conns over the rate at which the region's other edges admit resumes. An
// edge that is alone comes back itself, at its own rate.
func (e *Edge) retryWindow() uint32 {
	rate := math.Float64frombits(e.gate.returns.Load())
	if rate <= 0 {
		rate = float64(e.settings().Admission.ResumePerSecond)
	}
	window := time.Duration(float64(e.conns.Load()) / rate * float64(time.Second))
	return uint32(min(max(window, 500*time.Millisecond), 10*time.Second).Milliseconds())
}

// loadAdmission fills in what this edge could take.
func (e *Edge) loadAdmission(f *presence.Figure) {
	s := e.gate.status()
	c := e.gate.capacity(e.Settings())
	f.Capacity = uint64(c.MaxConns - c.Margin)
	f.Headroom, f.Granted, f.Passes = uint64(s.Headroom), uint64(max(s.Granted, 0)), uint64(s.Passes)
	f.MovedPerSecond, f.ResumePerSecond, f.FreshPerSecond = s.MovedPerSecond, s.ResumePerSecond, s.FreshPerSecond
}
