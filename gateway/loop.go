package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/door"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/internal/inbox"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/sendq"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/leave"
)

// loop owns its conns, their send queues and its part of the channel table. One
// goroutine runs it; everybody else posts to the inbox. It never blocks but in
// Wait.
type loop struct {
	// immutable after newLoop
	id   int
	edge *Edge

	// from any goroutine
	inbox     inbox.Inbox[message]
	liveBytes atomic.Int64 // of live events in the inbox; <= InboxBytes + one batch
	shed      shedSet

	// owned by the loop
	poller   poller.Poller
	slots    []*conn // by the low half of a token
	free     []uint32
	gen      uint32 // of the next conn; the high half of its token
	seen     []uint32
	channels map[string]*localChannel
	requests []*request // in order of their deadlines
	dirty    []*conn    // to be flushed at the end of the turn
	now      time.Time  // of this turn
	swept    time.Time
	subID    uint64
	queues   *sendq.Pool
	readBuf  []byte
	scratch  []byte // replies are encoded here
	flushBuf []byte
	conns    int
	index    sessionIndex
	leaving  *leave.Part // of departures
}

func newLoop(id int, e *Edge, p poller.Poller) *loop {
	l := &loop{
		id:       id,
		edge:     e,
		poller:   p,
		channels: make(map[string]*localChannel),
		queues:   sendq.NewPool(queueLimits(e.cfg.SendQueueBytes)),
		readBuf:  make([]byte, 64<<10),
		flushBuf: make([]byte, 0, 64<<10),
		now:      time.Now(),
	}
	l.swept = l.now
	l.inbox.Wake = p.Wake
	l.leaving = e.governor.AddLoop((*leavingLoop)(l))
	return l
}

// run turns until ctx ends; what is still open then is closed without a word.
func (l *loop) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, l.poller.Wake)
	defer stop()
	defer l.shut()
	var events []poller.Event
	for ctx.Err() == nil {
		var err error
		events, err = l.poller.Wait(events[:0], l.timeout())
		if err != nil {
			return err
		}
		start := time.Now()
		l.now = start
		for _, ev := range events {
			l.ready(ev)
		}
		l.drainInbox()
		l.answerLate()
		if l.now.Sub(l.swept) >= sweepInterval {
			l.swept = l.now
			l.sweep()
			l.leaving.AskOn()
		}
		l.flushDirty()
		l.edge.metrics.turn.Observe(time.Since(start).Seconds())
	}
	return nil
}

func (l *loop) timeout() time.Duration {
	wait := sweepInterval - time.Since(l.swept)
	if len(l.requests) > 0 {
		wait = min(wait, time.Until(l.requests[0].deadline))
	}
	return max(wait, 0)
}

func (l *loop) drainInbox() {
	// First what was shed: whatever was posted before it, the verdict that makes a
	// subscription live among it, is in the inbox by now. The other way round a verdict
	// posted meanwhile would come after the mark, and nothing would show the hole.
	shed := l.shed.take()
	for _, m := range l.inbox.Take() {
		m.apply(l)
	}
	for name := range shed {
		l.edge.metrics.shed.Inc()
		if ch := l.channels[name]; ch != nil {
			for _, s := range ch.subs {
				if s.state == subLive {
					s.fallBehind()
				}
			}
		}
	}
}

// message is something that another goroutine wants a loop to do.
type message interface {
	// apply runs on the loop.
	apply(l *loop)
}

// shedSet is the channels whose live events a loop was too far behind to take.
type shedSet struct {
	mu       sync.Mutex // guards channels
	channels map[string]struct{}
}

func (s *shedSet) add(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels == nil {
		s.channels = make(map[string]struct{})
	}
	s.channels[channel] = struct{}{}
}

func (s *shedSet) take() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.channels
	s.channels = nil
	return taken
}

// ready serves one conn that the poller named.
func (l *loop) ready(ev poller.Event) {
	c := l.find(ev.Token)
	if c == nil {
		return // closed earlier in this turn
	}
	if ev.Writable {
		l.markDirty(c)
	}
	switch {
	case c.paused && ev.Hangup:
		c.drop(reasonClient)
	case ev.Readable && !c.paused:
		c.read()
	}
}

func (l *loop) find(token uint64) *conn {
	slot := uint32(token)
	if int(slot) >= len(l.slots) {
		return nil
	}
	if c := l.slots[slot]; c != nil && c.token == token {
		return c
	}
	return nil
}

// adopted is a socket that the door admitted.
type adopted struct{ *door.Admitted }

// Adopt is called by the door; it posts.
func (l *loop) Adopt(m *door.Admitted) {
	l.edge.counts.admitted()
	l.inbox.Post(adopted{m})
}

// probe is the door's question how long things wait for a loop.
type probe struct{ *door.Probe }

// Probe is called by the door; it posts.
func (l *loop) Probe(p *door.Probe) { l.inbox.Post(probe{p}) }

func (m probe) apply(*loop) { m.Answer() }

// lateAfter is how long an admitted client may wait for its loop. Past it most have
// given up, and the place is better given to one that tries now.
const lateAfter = 3 * time.Second

// stillThere says whether work for a client that was just admitted is worth it.
func (m adopted) stillThere(l *loop) bool {
	if l.now.Sub(m.At) > lateAfter {
		return false
	}
	n, err := m.Sock.Read(l.readBuf)
	if n > 0 {
		m.Rest = append(m.Rest, l.readBuf[:n]...)
	}
	return err == nil || errors.Is(err, poller.ErrAgain)
}

func (m adopted) apply(l *loop) {
	if !m.stillThere(l) {
		l.edge.metrics.late.Inc()
		m.Sock.Close()
		l.edge.counts.released()
		return
	}
	var slot uint32
	if n := len(l.free); n > 0 {
		slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		slot = uint32(len(l.slots))
		l.slots = append(l.slots, nil)
		l.seen = append(l.seen, 0)
	}
	l.gen++
	c := &conn{
		loop:     l,
		sock:     m.Sock,
		client:   m.Client,
		offered:  m.Ticket,
		token:    uint64(l.gen)<<32 | uint64(slot),
		deadline: l.seconds() + ceilSeconds(l.edge.cfg.ConnectTimeout),
	}
	c.in = wsframe.NewReader(&l.edge.settings().frames)
	c.out = l.queues.Queue()
	if err := l.poller.Add(m.Sock, c.token); err != nil {
		l.edge.log.Error("poller refused a conn", "err", err)
		m.Sock.Close()
		l.free = append(l.free, slot)
		l.edge.counts.released()
		return
	}
	l.slots[slot] = c
	l.conns++
	c.touch()
	l.leaving.Came(leaves(c))
	if len(m.Rest) > 0 {
		c.feed(m.Rest)
	}
}

// forget takes a closed conn out of the tables.
func (l *loop) forget(c *conn) {
	l.uncount(c)
	slot := uint32(c.token)
	l.slots[slot] = nil
	l.free = append(l.free, slot)
	l.conns--
	l.edge.counts.gone(c)
}

func (l *loop) markDirty(c *conn) {
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
}

// flushDirty writes each conn that has something to say once a turn. Serving a
// drained laggard may make conns dirty again; those wait for the next turn.
func (l *loop) flushDirty() {
	for len(l.dirty) > 0 {
		batch := l.dirty
		l.dirty = nil
		for _, c := range batch {
			c.dirty = false
			if !c.closed {
				c.flush()
			}
		}
		if len(l.dirty) == 0 {
			clear(batch)
			l.dirty = batch[:0]
			return
		}
	}
}

// local returns this loop's entry of a channel.
func (l *loop) local(name string) *localChannel {
	ch := l.channels[name]
	if ch == nil {
		ch = &localChannel{name: name}
		l.channels[name] = ch
	}
	return ch
}

// leave drops a subscription; the last one of the loop ends its interest.
func (l *loop) leave(s *subscription) {
	if s.state == subWaiting || s.state == subPulling {
		l.edge.table.Cancel(l.id, s.c.token, s.id, s.channel.name)
	}
	s.channel.remove(s)
	l.edge.metrics.subscriptions.Dec()
	if len(s.channel.subs) == 0 {
		delete(l.channels, s.channel.name)
		l.edge.table.Leave(l.id, s.channel.name)
	}
}

// seconds is the coarse clock of sweeps: seconds since the edge was made.
func (l *loop) seconds() uint32 { return l.edge.clock.seconds(l.now) }

// shut closes everything; only the end of run calls it.
func (l *loop) shut() {
	for _, m := range l.inbox.Take() {
		if a, ok := m.(adopted); ok {
			a.Sock.Close()
			l.edge.counts.released()
		}
	}
	for _, c := range l.slots {
		if c != nil {
			c.drop(reasonShutdown)
		}
	}
	l.poller.Close()
}

// A loop is the Sink of the channel table and one of the door's loops: those methods run
// on the goroutines of others and only post.
var (
	_ feed.Sink = (*loop)(nil)
	_ door.Loop = (*loop)(nil)
)
