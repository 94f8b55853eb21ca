package gateway

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/gateway/door"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Messenger is how edges tell all edges things (presence/nats.Messenger). Broadcast must
// not block; Listen calls heard for one message after the other until ctx ends.
type Messenger interface {
	Broadcast(topic string, message []byte) error
	Listen(ctx context.Context, topic string, heard func(message []byte)) error
}

const (
	takeoverTopic    = "takeovers"
	takeoverBatch    = 100 * time.Millisecond
	takeoverBytes    = 24              // session 16, attempt 8, big endian
	takeoversInBatch = 8_192           // 196 KB, under the bus's limit
	takeoversPending = 40_000          // 960 KB; more than any edge welcomes in a second
	tieSeconds       = 2               // of a conn's life, after which it yields to an equal
	rehearPause      = 1 * time.Second // after the bus refused to let us hear
)

// takeovers gathers what other edges are to be told: who has been welcomed here, and
// which tickets that are good once were used. What is lost is harmless: the conn that
// was left lives on until its client closes it, or its heartbeat ends it; the ticket is
// good elsewhere.
type takeovers struct {
	edge *Edge // immutable

	mu      sync.Mutex // guards all below
	pending []byte     // takeoverBytes each; <= takeoversPending of them
	spent   []byte     // door.MarkBytes each; <= takeoversPending of them
}

func appendTakeover(b []byte, s *session) []byte {
	b = append(b, s.id[:]...)
	return binary.BigEndian.AppendUint64(b, s.attempt)
}

// add queues one; false: the queue is full.
func (t *takeovers) add(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pending) >= takeoversPending*takeoverBytes {
		return false
	}
	t.pending = appendTakeover(t.pending, s)
	return true
}

// spend queues the mark of a ticket; false: the queue is full.
func (t *takeovers) spend(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.spent) >= takeoversPending*door.MarkBytes {
		return false
	}
	t.spent = binary.BigEndian.AppendUint64(t.spent, mark)
	return true
}

func (t *takeovers) take() (sessions, spent []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sessions, spent = t.pending, t.spent
	t.pending, t.spent = nil, nil
	return sessions, spent
}

// takeOver makes c the conn that counts of its session when `connected` is written,
// unless one with a higher attempt is there.
func (c *conn) takeOver() {
	if c.closing || c.closed {
		return
	}
	l, s := c.loop, c.session
	if old := l.index.find(l.slots, &s.id); old != nil {
		if decideTakeover(s.attempt, old.session.attempt, s.laterThan(old.session.order)) == takeoverYields {
			l.supersede(c, true)
			return
		}
		l.supersede(old, true)
	}
	l.index.put(l.slots, c)
	c.counted = true
	l.edge.counts.session(s, 1)
	if s.resumed {
		l.edge.takeovers.announce(l, s)
	}
}

// announce tells the other loops at once and the other edges with the next batch.
func (t *takeovers) announce(from *loop, s *session) {
	e := t.edge
	if len(e.loops) > 1 {
		m := &takenOver{edge: e.cfg.ID, here: true, order: s.order, sessions: appendTakeover(nil, s)}
		for _, l := range e.loops {
			if l != from {
				l.inbox.Post(m)
			}
		}
	}
	if e.messenger != nil && !t.add(s) {
		e.metrics.takeoversLost.Inc()
	}
}

// used tells the other edges with the next batch that a ticket is good no more.
func (t *takeovers) used(mark uint64) {
	if t.edge.messenger != nil && !t.spend(mark) {
		t.edge.metrics.spentLost.Inc()
	}
}

// uncount takes a conn out of index and figures.
func (l *loop) uncount(c *conn) {
	if c.counted {
		c.counted = false
		l.index.remove(l.slots, c)
		l.edge.counts.session(c.session, -1)
	}
}

// takenOver says that sessions were welcomed on another loop or edge.
type takenOver struct {
	edge     string
	here     bool   // on another loop of this edge; then it is one session
	order    uint32 // its order, if here
	sessions []byte
}

func (m *takenOver) apply(l *loop) {
	greater := l.edge.cfg.ID > m.edge
	for b := m.sessions; len(b) >= takeoverBytes; b = b[takeoverBytes:] {
		c := l.index.find(l.slots, (*[16]byte)(b))
		if c == nil {
			continue
		}
		s, later := c.session, false
		if m.here {
			later = s.laterThan(m.order)
		} else {
			// Batches have no times: who is young and came back itself may be the later one.
			later = greater && s.resumed && l.seconds()-s.stay.Since < tieSeconds
		}
		switch decideTakeover(s.attempt, binary.BigEndian.Uint64(b[16:]), later) {
		case takeoverYields:
			l.supersede(c, m.here)
		case takeoverAnswers:
			l.edge.takeovers.announce(l, s)
		}
	}
}

// takeoverVerdict is what a conn does about another one of its session.
type takeoverVerdict uint8

const (
	takeoverStays   takeoverVerdict = iota
	takeoverYields                  // the other one counts
	takeoverAnswers                 // the other one does not know that this one counts
)

// laterThan says that s was welcomed at this edge after the one of that order.
func (s *session) laterThan(order uint32) bool { return int32(s.order-order) > 0 }

// decideTakeover compares the attempts of two conns of a session; on a tie the later
// one counts.
func decideTakeover(mine, heard uint64, later bool) takeoverVerdict {
	switch {
	case heard > mine, heard == mine && !later:
		return takeoverYields
	case heard < mine:
		return takeoverAnswers
	}
	return takeoverStays
}

// say tells the other edges, a batch each 100 ms if there is anything to tell, until ctx
// ends.
func (t *takeovers) say(ctx context.Context) {
	ticker := time.NewTicker(takeoverBatch)
	defer ticker.Stop()
	heard := true // by the others, as far as we know
	told := false // a backlog, in the last batch
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		backlog := t.edge.gate.Compare(heard)
		sessions, spent := t.take()
		if len(sessions)+len(spent) == 0 && backlog == 0 && !told {
			continue
		}
		for told = backlog > 0; ; {
			n, m := min(len(sessions), takeoversInBatch*takeoverBytes), min(len(spent), takeoversInBatch*door.MarkBytes)
			heard = t.sayBatch(&gatewayv1.Takeovers{
				Edge: t.edge.cfg.ID, Sessions: sessions[:n], Spent: spent[:m], BacklogMs: uint32(backlog.Milliseconds()),
			})
			if sessions, spent = sessions[n:], spent[m:]; len(sessions)+len(spent) == 0 {
				break
			}
		}
	}
}

func (t *takeovers) sayBatch(m *gatewayv1.Takeovers) bool {
	message, err := proto.Marshal(m)
	if err == nil {
		err = t.edge.messenger.Broadcast(takeoverTopic, message)
	}
	if err != nil {
		t.edge.metrics.takeoversLost.Add(float64(len(m.Sessions) / takeoverBytes))
		t.edge.metrics.spentLost.Add(float64(len(m.Spent) / door.MarkBytes))
	}
	return err == nil
}

// hear passes on what other edges say, until ctx ends.
func (t *takeovers) hear(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.edge.messenger.Listen(ctx, takeoverTopic, t.heard); err != nil {
			t.edge.log.Warn("cannot hear who is taken over", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rehearPause):
		}
	}
}

func (t *takeovers) heard(message []byte) {
	e := t.edge
	var m gatewayv1.Takeovers
	if err := proto.Unmarshal(message, &m); err != nil || len(m.Sessions)%takeoverBytes != 0 || len(m.Spent)%door.MarkBytes != 0 {
		e.log.Warn("a batch of takeovers is damaged", "bytes", len(message))
		return
	}
	if m.Edge == e.cfg.ID {
		return
	}
	if len(m.Spent) > 0 && e.targets.SameRegion(m.Edge) { // elsewhere they are not good
		e.gate.Spent(m.Spent)
	}
	e.gate.HearBacklog(m.Edge, time.Duration(m.BacklogMs)*time.Millisecond)
	if len(m.Sessions) == 0 {
		return
	}
	for _, l := range e.loops {
		l.inbox.Post(&takenOver{edge: m.Edge, sessions: m.Sessions})
	}
}
