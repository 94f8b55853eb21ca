package drain

import (
	"cmp"
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// world is the edges and clients around plans: receivers that answer by a simple
// rule, a bus that may be away, clients that obey or do not.
type world struct {
	start, now time.Time
	edges      map[string]*edge
	plans      map[string]*mover
	busAway    bool
	slowBus    time.Duration // of a question or an answer, each way
	later      []event
}

type event struct {
	at time.Time
	do func()
}

// edge is a receiver.
type edge struct {
	Receiver
	held     map[string]*gatewayv1.GrantOffer // by asker
	numbers  map[string]uint32
	keeps    map[string]map[uint32]*gatewayv1.GrantConfirm
	closed   bool // grants nothing and says so
	lapse    bool // the next confirmation finds nothing
	paced    bool // grants no faster than it was asked for
	rate     float64
	freshly  float64
	arrivals []time.Time // granted ones
}

// mover is one plan with its clients.
type mover struct {
	plan     *Plan
	id       string
	counts   Counts
	told     []tell
	moved    int
	closed   int
	straying int
	gone     int
	stubborn int // of those told next: they do not go
	targets  map[string]int
	did      map[string]int // by what the log calls it
	ended    bool
	total    int
}

type tell struct {
	at       time.Time
	to       string
	until    time.Time // closed then; zero: a straggler if it stays
	stubborn bool
}

func newWorld() *world {
	start := time.Unix(1_000_000, 0)
	return &world{start: start, now: start, edges: map[string]*edge{}, plans: map[string]*mover{}, slowBus: 5 * time.Millisecond}
}

func (w *world) add(id, region string, headroom int, rate, fresh float64) *edge {
	e := &edge{
		Receiver: Receiver{ID: id, Region: region, Headroom: headroom, MovedPerSecond: rate, Addressed: true},
		held:     map[string]*gatewayv1.GrantOffer{}, numbers: map[string]uint32{},
		keeps: map[string]map[uint32]*gatewayv1.GrantConfirm{}, rate: rate, freshly: fresh,
	}
	w.edges[id] = e
	return e
}

func (w *world) begin(id string, counts Counts, window time.Duration, change func(*Config)) *mover {
	cfg := Config{Operation: "op-" + id, Edge: id, Incarnation: 1, Region: "eu", Start: w.now, End: w.now.Add(window)}
	if change != nil {
		change(&cfg)
	}
	m := &mover{
		plan: New(cfg), id: id, counts: counts, targets: map[string]int{}, did: map[string]int{},
		total: counts.waiting() + counts.Unmovable,
	}
	if e := w.edges[id]; e != nil {
		e.Draining = !cfg.GrantedOnly
	}
	w.plans[id] = m
	return m
}

// step is one tick of everything.
func (w *world) step() {
	w.now = w.now.Add(Step)
	w.due()
	for _, id := range sortedKeys(w.plans) {
		m := w.plans[id]
		m.leave(w)
		if !m.ended {
			w.obey(m, m.plan.Tick(w.now, m.counts, w.receivers()))
			m.ended = m.remaining() == 0 || m.plan.ended
		}
	}
}

func (w *world) due() {
	for {
		i := slices.IndexFunc(w.later, func(e event) bool { return !e.at.After(w.now) })
		if i < 0 {
			return
		}
		e := w.later[i]
		w.later = slices.Delete(w.later, i, i+1)
		e.do()
	}
}

func (w *world) after(d time.Duration, do func()) { w.later = append(w.later, event{w.now.Add(d), do}) }

func (w *world) receivers() []Receiver {
	var all []Receiver
	for _, id := range sortedKeys(w.edges) {
		all = append(all, w.edges[id].Receiver)
	}
	return all
}

func (w *world) obey(m *mover, actions []Action) {
	for _, a := range actions {
		switch a.Kind {
		case Ask:
			w.answer(m, a)
		case Confirm:
			w.confirmation(m, a)
		case Move:
			m.tell(w, a)
		case Close:
			n := min(a.Count, m.counts.Unmovable)
			m.counts.Unmovable -= n
			m.closed += n
			m.did["close"] += n
		case CloseHinted:
			n := min(a.Count, len(m.told))
			m.told = m.told[n:]
			m.counts.Hinted = len(m.told)
			m.straying += n
			m.did["straggler"] += n
		case CloseAll:
			m.did["all"] += m.remaining()
			m.closed += m.counts.Unmovable + m.counts.waiting()
			m.straying += m.counts.Hinted
			m.counts, m.told = Counts{}, nil
		case Recall:
			m.told = slices.DeleteFunc(m.told, func(t tell) bool {
				if t.to == a.To {
					m.counts.Movable++
					m.did["recall "+a.To]++
				}
				return t.to == a.To
			})
			m.counts.Hinted = len(m.told)
		}
	}
}

func (m *mover) remaining() int { return m.counts.waiting() + m.counts.Unmovable + m.counts.Hinted }

func (m *mover) tell(w *world, a Action) {
	critical := min(a.Count, m.counts.Critical)
	movable := min(a.Count-critical, m.counts.Movable)
	m.counts.Critical -= critical
	m.counts.Movable -= movable
	name := "move " + cmp.Or(a.To, "anywhere")
	if !a.Granted {
		name = "hint"
	}
	for i := range critical + movable {
		t := tell{at: a.First.Add(time.Duration(i) * a.Every), to: a.To}
		if a.Grace > 0 {
			t.until = t.at.Add(a.Grace)
		}
		if m.stubborn > 0 {
			m.stubborn--
			t.stubborn = true
		}
		m.told = append(m.told, t)
		m.counts.Hinted++
		m.did[name]++
		if critical > i {
			m.did["critical"]++
		}
		if a.Granted {
			m.targets[a.To]++
			if e := w.edges[a.To]; e != nil {
				e.arrivals = append(e.arrivals, t.at)
			}
		}
	}
}

// leave lets clients go that were told 300 ms ago, and closes those whose grace is over.
func (m *mover) leave(w *world) {
	room := 0
	for _, e := range w.edges {
		if !e.Draining && !e.Silent && !e.closed {
			room += e.Headroom
		}
	}
	m.told = slices.DeleteFunc(m.told, func(t tell) bool {
		target := w.edges[t.to]
		switch {
		case !t.until.IsZero() && !w.now.Before(t.until):
			m.straying++
			m.did["late"]++
			return true
		case t.stubborn, w.now.Sub(t.at) < 300*time.Millisecond, t.to != "" && (target == nil || target.Silent), t.to == "" && room == 0:
			return false
		}
		m.moved++
		return true
	})
	m.counts.Hinted = len(m.told)
}

func (w *world) answer(m *mover, a Action) {
	if w.busAway || w.edges[a.To] == nil {
		m.plan.Failed(w.now, a.To, a.Request.Number, w.busAway)
		return
	}
	e, q := w.edges[a.To], a.Request
	w.after(w.slowBus, func() {
		o := e.offer(q)
		w.after(w.slowBus, func() {
			if o != nil && !w.busAway {
				w.obey(m, m.plan.Offer(w.now, o))
			}
		})
	})
}

func (e *edge) offer(q *gatewayv1.GrantRequest) *gatewayv1.GrantOffer {
	switch {
	case e.Silent:
		return nil
	case e.numbers[q.Edge] >= q.Number:
		return e.held[q.Edge]
	}
	e.numbers[q.Edge] = q.Number
	o := &gatewayv1.GrantOffer{
		Operation: q.Operation, Edge: e.ID, Number: q.Number,
		MovablePerSecond: e.rate, UnmovablePerSecond: e.freshly, Reason: "draining",
	}
	e.held[q.Edge] = o
	if e.Draining || e.closed {
		return o
	}
	window := time.Duration(q.WindowMs) * time.Millisecond
	o.Movable = uint32(min(int(q.Movable), e.Headroom, int(window.Seconds()*e.rate)))
	o.Unmovable = uint32(min(int(q.Unmovable), e.Headroom-int(o.Movable), int(window.Seconds()*e.freshly)))
	o.Reason = ""
	if e.paced {
		within := max(float64(cmp.Or(q.MovableWindowMs, q.WindowMs))/1000, 1)
		o.MovablePerSecond = min(e.rate, float64(o.Movable)/within)
	}
	e.Headroom -= int(o.Movable + o.Unmovable)
	return o
}

func (w *world) confirmation(m *mover, a Action) {
	if w.busAway || w.edges[a.To] == nil {
		return
	}
	e, q := w.edges[a.To], a.Keep
	w.after(w.slowBus, func() {
		if e.Silent {
			return
		}
		held := !e.lapse
		e.lapse = false
		if held {
			by := e.keeps[q.Edge]
			if by == nil {
				by = map[uint32]*gatewayv1.GrantConfirm{}
				e.keeps[q.Edge] = by
			}
			if before := by[q.Number]; before != nil {
				e.Headroom += int(before.Movable + before.Unmovable - q.Movable - q.Unmovable)
			} else if o := e.held[q.Edge]; o != nil && o.Number == q.Number {
				e.Headroom += int(o.Movable + o.Unmovable - q.Movable - q.Unmovable)
			}
			by[q.Number] = q
		}
		w.after(w.slowBus, func() { m.plan.Confirmed(w.now, a.To, q.Number, held) })
	})
}

// confirmed is how many moves the edge has ever promised room for.
func (e *edge) confirmed() int {
	n := 0
	for _, by := range e.keeps {
		for _, k := range by {
			n += int(k.Movable)
		}
	}
	return n
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
