package leave

import "time"

const (
	enrollScan    = 2_048           // conns that a turn of a loop looks at: 0.1 ms
	closesATurn   = 256             // of the last ones
	mostAfter     = 2 * time.Second // of a hint: it is sent when its slot has come
	movedSlotLife = 10 * time.Second
)

// in is the part of a loop in a departure, or nil if it has none any more.
func (p *Part) in(d *departure) *enrolled {
	if p.current == nil || p.current.departure != d {
		return nil
	}
	return p.current
}

// enrollOrder has a loop take part, and walks over its conns, a piece a turn.
type enrollOrder struct {
	d    *departure
	next int
	mine *enrolled
	done chan<- struct{} // capacity for every loop
}

func (o *enrollOrder) Apply(p *Part) {
	if o.mine == nil {
		p.departures++
		s := &o.d.parts[p.id]
		o.mine = &enrolled{departure: o.d, share: s, number: p.departures, quota: s.quota}
		p.current = o.mine
	}
	if p.current != o.mine {
		o.done <- struct{}{}
		return
	}
	slots := p.conns.Slots()
	end := min(o.next+enrollScan, slots)
	for ; o.next < end; o.next++ {
		if c := p.conns.At(o.next); c != nil {
			o.mine.enroll(p, c)
		}
	}
	if o.next < slots {
		p.conns.Post(o)
		return
	}
	o.done <- struct{}{}
}

// moveOrder hints clients, one a slot.
type moveOrder struct {
	d       *departure
	target  string // member id; "": none
	url     string // "": the client's own list
	granted bool
	grace   time.Duration // without a grant: to the close
	slots   []time.Time
	of      []class
}

func (o *moveOrder) Apply(p *Part) {
	e := p.in(o.d)
	if e == nil {
		return
	}
	for i, slot := range o.slots {
		k := o.of[i]
		if c := e.pop(p, k); c != nil {
			e.hint(p, c, o, slot)
		}
		e.share.served[k].Add(1)
	}
}

// hint sends the hint; the conn delivers on until its client has left it.
func (e *enrolled) hint(p *Part, c Conn, o *moveOrder, slot time.Time) {
	now, second := p.conns.Now()
	after := min(max(slot.Sub(now), 0), mostAfter)
	deadline, k := e.tail(), classHinted
	if !slot.Before(deadline) {
		deadline = e.endTime()
	}
	if !o.granted {
		k = classUnplaced
		if until := slot.Add(o.grace); until.Before(deadline) || o.grace > 0 {
			deadline = until
		}
	}
	sent := c.Hint(Hint{
		Reason: e.reason, URL: o.url, After: after, Deadline: max(deadline.Sub(now), 0),
		// A moved client comes at its slot; its next tries are in it too.
		Granted: o.granted, Operation: e.operation, Target: o.target, From: now.Add(after), Until: now.Add(after + movedSlotLife),
	})
	if !sent {
		return
	}
	c.Mark().target = o.target
	e.file(c, k)
	if k == classUnplaced {
		e.until = append(e.until, deadline)
	}
	if e.surplus {
		c.Stay().askedNow(second)
	}
}

// closeOrder closes conns of one class, the oldest first of those hinted.
type closeOrder struct {
	d *departure
	n int
	k class
}

func (o *closeOrder) Apply(p *Part) {
	e := p.in(o.d)
	if e == nil {
		return
	}
	for range o.n {
		if c := e.pop(p, o.k); c != nil {
			c.ShutDown()
		}
		e.share.served[o.k].Add(1)
	}
}

// graceOrder closes those hinted without a grant whose grace is over.
type graceOrder struct{ d *departure }

func (o graceOrder) Apply(p *Part) {
	e := p.in(o.d)
	if e == nil {
		return
	}
	now, _ := p.conns.Now()
	for len(e.until) > 0 && !now.Before(e.until[0]) {
		e.until = e.until[1:]
		token := e.lists[classUnplaced][0]
		e.lists[classUnplaced] = e.lists[classUnplaced][1:]
		if c := e.find(p, token, classUnplaced); c != nil {
			c.ShutDown()
		}
	}
}

// recallOrder files those who were sent to a target that is gone, and are still here,
// to be hinted anew.
type recallOrder struct {
	d      *departure
	target string
}

func (o recallOrder) Apply(p *Part) {
	e := p.in(o.d)
	if e == nil {
		return
	}
	list := e.lists[classHinted]
	e.lists[classHinted] = nil
	for _, token := range list {
		c := e.find(p, token, classHinted)
		switch {
		case c == nil:
		case c.Mark().target != o.target:
			e.lists[classHinted] = append(e.lists[classHinted], token)
		default:
			e.file(c, classOf(c.Kind()))
		}
	}
}

// closeAllOrder closes whoever is left, superseded conns too, a piece a turn.
type closeAllOrder struct{ next int }

func (o *closeAllOrder) Apply(p *Part) {
	slots := p.conns.Slots()
	for n := 0; o.next < slots && n < closesATurn; o.next++ {
		if c := p.conns.At(o.next); c != nil && c.ShutDown() {
			n++
		}
	}
	if o.next < slots {
		p.conns.Post(o)
	}
}

// endOrder ends a loop's part; who was hinted may still go.
type endOrder struct{ d *departure }

func (o endOrder) Apply(p *Part) {
	if p.in(o.d) != nil {
		p.current = nil
	}
}
