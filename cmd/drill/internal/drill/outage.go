package drill

import (
	"context"
	"fmt"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Parts are what an outage can take away.
func Parts() []string { return []string{"nats", "etcd", "store", "routers"} }

const (
	awayBeat   = 5 * time.Second // between two looks while a part is away
	returnTime = 30 * time.Second
	returnBeat = time.Second
)

// outage: a part of the infrastructure is away for long. Sockets stay, new clients come
// in, nothing grows; afterwards everything is where it was (I9).
func (w *world) outage() error {
	w.admins = make(map[string]routerv1.AdminServiceClient)
	for _, r := range w.c.Routers() {
		conn, err := w.c.Dial(r)
		if err != nil {
			return err
		}
		w.admins[r.ID] = routerv1.NewAdminServiceClient(conn)
	}
	members, err := w.membersSeen()
	if err != nil {
		return err
	}
	steady, err := w.effort(w.pause)
	if err != nil {
		return err
	}
	if err := w.incident("%s away for %v", w.o.Part, w.o.Away); err != nil {
		return err
	}
	a := &Absence{Part: w.o.Part, Steady: steady}
	w.report.Absence = a
	changes := w.changes()
	if err := w.part(false); err != nil {
		return err
	}
	a.Away, err = w.effort(func(time.Duration) error { return w.away(a) })
	if err != nil {
		return err
	}
	if err := w.part(true); err != nil {
		return err
	}
	w.step("%s back after %.1f s", w.o.Part, time.Since(w.t0).Seconds())
	if err := w.returned(a, members); err != nil {
		return err
	}
	if err := w.settle(60*time.Second, 0); err != nil {
		return err
	}
	a.Changes = w.changes() - changes
	if a.Operations, err = w.operations(); err != nil {
		return err
	}
	w.promiseUninterrupted()
	w.promiseAway(a)
	w.promiseRestored(a)
	return nil
}

// part takes away what the outage is about, or brings it back.
func (w *world) part(back bool) error {
	switch w.o.Part {
	case "store":
		if back {
			return w.c.Store().Restart()
		}
		return w.c.Store().Stop()
	case "routers":
		for _, r := range w.c.Routers() {
			do := r.Kill
			if back {
				do = r.Start
			}
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}
	p := w.c.Infra()[0]
	if w.o.Part == "etcd" {
		p = w.c.Infra()[1]
	}
	if back {
		return p.Start()
	}
	return p.Kill()
}

// away looks on while the part is away; a quarter of the time in, new clients come.
func (w *world) away(a *Absence) error {
	came := false
	for until := w.t0.Add(w.o.Away); time.Now().Before(until); {
		if err := w.pause(min(awayBeat, time.Until(until))); err != nil {
			return err
		}
		if !came && time.Since(w.t0) > w.o.Away/4 {
			came = true
			if err := w.newcomers(a); err != nil {
				return err
			}
		}
		w.watch(a)
	}
	return nil
}

func (w *world) newcomers(a *Absence) error {
	if err := w.gen.Want(w.o.Clients); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, min(w.o.Away/2, 30*time.Second))
	defer cancel()
	began := time.Now()
	err := w.gen.AwaitUp(ctx, w.o.Clients)
	if w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	w.promise(err == nil, "new clients come in meanwhile", "%d of %d in %.1f s", w.gen.Up()-w.o.Clients+w.o.late, w.o.late, time.Since(began).Seconds())
	w.step("%d new clients came in", w.gen.Up()-w.o.Clients+w.o.late)
	return nil
}

// returned looks on while everybody finds back: how fast edges ask, and whether any
// router misses a member for a moment.
func (w *world) returned(a *Absence, members map[string]string) error {
	if w.o.Part == "routers" {
		for _, r := range w.c.Routers() {
			if err := w.c.AwaitReady(w.ctx, r); err != nil {
				return err
			}
		}
		err := w.eventually(returnTime, "the routers know all members", func() bool {
			now, err := w.membersSeen()
			return err == nil && len(now) == len(members)
		})
		if err != nil {
			return err
		}
	}
	r, err := w.gen.Report(w.ctx)
	if err != nil {
		return err
	}
	a.Pending = r.Phase.Pending
	look := min(w.o.Away, returnTime)
	last, at := w.asks(), time.Now()
	for until := time.Now().Add(look); time.Now().Before(until); {
		if err := w.pause(returnBeat); err != nil {
			return err
		}
		if time.Until(until) < look/2 {
			w.reach(w.o.Clients) // by now the new ones know where they are
		}
		now, t := w.asks(), time.Now()
		a.PeakAsks = max(a.PeakAsks, (now-last)/t.Sub(at).Seconds())
		last, at = now, t
		seen, err := w.membersSeen()
		if err != nil {
			a.Missed = append(a.Missed, err.Error())
			continue
		}
		for id, state := range members {
			if seen[id] != state && len(a.Missed) < 10 {
				a.Missed = append(a.Missed, fmt.Sprintf("%.1f s after the return %s is %q, was %q", time.Since(w.t0.Add(w.o.Away)).Seconds(), id, seen[id], state))
			}
		}
	}
	return nil
}

// membersSeen is the state of each member by what each router says.
func (w *world) membersSeen() (map[string]string, error) {
	all := make(map[string]string)
	for id, admin := range w.admins {
		ctx, cancel := context.WithTimeout(w.ctx, callTime)
		resp, err := admin.ListNodes(ctx, &routerv1.ListNodesRequest{})
		cancel()
		if err != nil {
			return nil, err
		}
		for _, n := range resp.Nodes {
			all[n.Id+" at "+id] = n.State
		}
	}
	return all, nil
}

// operations that have begun since the incident.
func (w *world) operations() (n int, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil {
		return 0, fmt.Errorf("list operations: %w", err)
	}
	for _, op := range resp.Operations {
		if int64(op.StartedMs) >= w.t0.UnixMilli() {
			n++
		}
	}
	return n, nil
}

// asks is what edges have asked routers so far.
func (w *world) asks() float64 {
	return w.metric(w.c.Edges(), "spillway_feed_asks_total", "")
}

// changes counts what must not happen to members and channels. Routers that were
// restarted count from nothing.
func (w *world) changes() float64 {
	n := 0.0
	for _, name := range []string{"spillway_router_epochs_renewed_total", "spillway_router_races_lost_total"} {
		n += w.metric(w.c.Routers(), name, "")
	}
	if w.o.Part != "routers" {
		for _, name := range []string{"spillway_presence_departures_total", "spillway_presence_lease_losses_total"} {
			n += w.metric(w.c.Routers(), name, "") + w.metric(w.c.Edges(), name, "")
		}
	}
	return n
}
