package leave

import "time"

// Part is what one loop has to do with departures; owned by the loop. The zero value has
// nothing to do.
type Part struct {
	// immutable after AddLoop
	governor *Governor
	id       int // among the loops
	conns    Conns

	current    *enrolled // nil: no departure is under way
	departures uint8     // numbers them
	asked      int       // slot that AskOn looked at last
}

// Mark is what a conn keeps of departures.
type Mark struct {
	target    string // hinted to go there (member id)
	class     class
	departure uint8 // number of the departure that class is of
}

// enrolled is the conns of one loop that are in the departure under way, by class.
type enrolled struct {
	*departure
	share  *share
	number uint8                // in Mark.departure: a conn of an older departure is not in this one
	lists  [numClasses][]uint64 // tokens, stale ones among them; hinted ones oldest first
	until  []time.Time          // beside lists[classUnplaced]
	quota  int                  // left, with surplus
}

// Came takes a conn that was just admitted, or whose client has said who it is, into the
// departure under way, if that is for all.
func (p *Part) Came(c Conn) {
	if p.current != nil && !p.current.surplus {
		p.current.enroll(p, c)
	}
}

// Left counts out a conn whose client is gone from here.
func (p *Part) Left(c Conn, why Reason) {
	e := p.current
	if e == nil {
		return
	}
	m := c.Mark()
	if !e.has(m) {
		return
	}
	hinted := m.class == classHinted || m.class == classUnplaced
	e.strike(m)
	switch {
	case why == ShutDown && hinted:
		e.stragglers.Add(1)
	case why == ShutDown:
		e.closed.Add(1)
	case hinted && why == Itself:
		e.moved.Add(1)
	default:
		e.gone.Add(1)
	}
}

// has says that a conn is in this departure.
func (e *enrolled) has(m *Mark) bool { return m.departure == e.number && m.class != classNone }

// enroll takes a conn in, or files it anew: one that has said `connect` meanwhile.
func (e *enrolled) enroll(p *Part, c Conn) {
	kind := c.Kind()
	if kind == Gone {
		return
	}
	k := classOf(kind)
	if e.surplus && (k != classMovable || e.quota == 0 || p.MovedOfLate(c)) {
		return
	}
	m := c.Mark()
	if e.has(m) {
		if m.class == k || m.class == classHinted || m.class == classUnplaced {
			return
		}
	} else {
		e.quota--
		m.class = classNone
		if e.named {
			e.sources.add(c.From())
		}
	}
	e.file(c, k)
}

func classOf(k Kind) class {
	switch k {
	case Critical:
		return classCritical
	case Movable:
		return classMovable
	}
	return classUnmovable
}

// file puts a conn into a class.
func (e *enrolled) file(c Conn, k class) {
	m := c.Mark()
	e.strike(m)
	m.departure, m.class = e.number, k
	e.share.here[k].Add(1)
	e.lists[k] = append(e.lists[k], c.Token())
}

// strike takes a conn out of its class.
func (e *enrolled) strike(m *Mark) {
	if e.has(m) {
		e.share.here[m.class].Add(-1)
		m.class = classNone
	}
}

// pop takes the next conn of a class: the oldest of those hinted, else any.
func (e *enrolled) pop(p *Part, k class) Conn {
	for len(e.lists[k]) > 0 {
		list := e.lists[k]
		var token uint64
		if k == classHinted || k == classUnplaced {
			token, e.lists[k] = list[0], list[1:]
		} else {
			token, e.lists[k] = list[len(list)-1], list[:len(list)-1]
		}
		if k == classUnplaced {
			e.until = e.until[1:]
		}
		if c := e.find(p, token, k); c != nil {
			return c
		}
	}
	return nil
}

// find is the conn of a token if it is still here and in that class, or nil.
func (e *enrolled) find(p *Part, token uint64, k class) Conn {
	if c := p.conns.Find(token); c != nil && e.has(c.Mark()) && c.Mark().class == k {
		return c
	}
	return nil
}
