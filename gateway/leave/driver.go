package leave

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// lookAround is how old the picture of the other edges may be.
const lookAround = 200 * time.Millisecond

// driver carries out the plan of one departure: every drain.Step it tells the plan who is
// still here and who the others are, and does what the plan says. Owned by the governor's
// goroutine.
type driver struct {
	g       *Governor
	b       Bounds
	d       *departure
	plan    *drain.Plan
	all     bool           // it ends when nobody is left at this edge, not only nobody of d
	answers chan *answered // of other edges; what has no room is asked again

	others []drain.Receiver
	seen   time.Time // when it looked who the others are
}

// enroll has the loops look at their conns; false: everything ends.
func (r *driver) enroll() bool {
	done := make(chan struct{}, len(r.g.parts))
	r.g.toLoops(func(int) Order { return &enrollOrder{d: r.d, done: done} })
	for range r.g.parts {
		select {
		case <-done:
		case <-r.b.Abort.Done():
			return false
		case <-r.b.Failing.Done():
			return false
		}
	}
	return true
}

func (r *driver) run(stop func(*drain.Plan, time.Time) bool) outcome {
	ticker := time.NewTicker(drain.Step)
	defer ticker.Stop()
	said := time.Time{}
	for {
		select {
		case <-r.b.Abort.Done():
			return brokenOff
		case <-r.b.Failing.Done():
			return brokenOff
		case a := <-r.answers:
			r.obey(a.tell(r.plan, time.Now()))
			continue
		case <-ticker.C:
		}
		now := time.Now()
		r.d.note(r.plan) // before it hands out what it has
		stopped := stop(r.plan, now)
		gone := r.d.remaining() == 0 && (!r.all || r.g.deps.Edge.Held() == 0)
		if stopped || gone {
			r.obey(r.plan.Stop(now))
			r.sayProgress(now, true)
			if stopped {
				return calledOff
			}
			return completed
		}
		r.obey(r.plan.Tick(now, r.d.counts(), r.lookAround(now)))
		over := !now.Before(r.d.endTime())
		if over || now.Sub(said) >= time.Second {
			said = now
			r.sayProgress(now, over)
		}
		if over {
			return completed
		}
	}
}

// lookAround is the picture of the others, a moment old at most.
func (r *driver) lookAround(now time.Time) []drain.Receiver {
	if now.Sub(r.seen) >= lookAround {
		r.others, r.seen = r.g.deps.Targets.Edges(r.d.below), now
	}
	return r.others
}

func anyAddressed(all []drain.Receiver) bool {
	for _, r := range all {
		if r.Addressed && !r.Draining && !r.Silent {
			return true
		}
	}
	return false
}

// obey does what a plan says.
func (r *driver) obey(actions []drain.Action) {
	d := r.d
	for _, a := range actions {
		switch a.Kind {
		case drain.Ask:
			r.ask(a.To, &gatewayv1.PeerRequest{Request: &gatewayv1.PeerRequest_Grant{Grant: a.Request}})
		case drain.Confirm:
			if d.named && a.Keep.Movable+a.Keep.Unmovable > 0 && r.g.deps.Targets.EndsTLS(a.To) {
				a.Keep.Sources = d.sources.list()
			}
			r.ask(a.To, &gatewayv1.PeerRequest{Request: &gatewayv1.PeerRequest_Confirm{Confirm: a.Keep}})
		case drain.Move:
			r.orderMoves(a)
		case drain.Close:
			r.orderCloses(classUnmovable, a.Count)
		case drain.CloseHinted:
			r.orderCloses(classHinted, a.Count)
		case drain.CloseAll:
			r.g.toLoops(func(int) Order { return new(closeAllOrder) })
		case drain.Recall:
			r.g.toLoops(func(int) Order { return recallOrder{d, a.To} })
		}
	}
	if d.all(classUnplaced) > 0 {
		r.g.toLoops(func(int) Order { return graceOrder{d} })
	}
}

func (r *driver) orderMoves(a drain.Action) {
	orders := make([]*moveOrder, len(r.g.parts))
	loops, of := r.d.split(a.Count, classCritical, classMovable)
	for i, l := range loops {
		if orders[l] == nil {
			// Without a grant one with headroom is as good as another.
			url := r.g.deps.Targets.Likely(r.others)
			if a.To != "" {
				url = r.g.deps.Targets.Address(a.To)
			}
			orders[l] = &moveOrder{d: r.d, target: a.To, url: url, granted: a.Granted, grace: a.Grace}
		}
		orders[l].slots = append(orders[l].slots, a.First.Add(time.Duration(i)*a.Every))
		orders[l].of = append(orders[l].of, of[i])
	}
	for l, o := range orders {
		if o != nil {
			r.g.parts[l].conns.Post(o)
		}
	}
}

func (r *driver) orderCloses(k class, n int) {
	counts := make([]int, len(r.g.parts))
	loops, _ := r.d.split(n, k)
	for _, l := range loops {
		counts[l]++
	}
	for l, n := range counts {
		if n > 0 {
			r.g.parts[l].conns.Post(&closeOrder{d: r.d, n: n, k: k})
		}
	}
}

// sayProgress tells routers on the bus and the metrics how far the departure has come.
func (r *driver) sayProgress(now time.Time, ended bool) {
	d := r.d
	message := d.note(r.plan)
	if message != "" && message != d.message {
		r.g.cfg.Log.Warn("clients are leaving", "operation", d.operation, "message", message)
	}
	d.message = message
	f := d.figures(now, ended)
	r.g.metrics.show(f)
	if r.g.deps.Peers == nil {
		return
	}
	if message, err := proto.Marshal(f); err == nil {
		_ = r.g.deps.Peers.Broadcast(ProgressTopic, message) // the bus may be away; the next one comes in a second
	}
}
