package table

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

const (
	// tickEvery is how often channels that wait for a hand-over are looked at.
	tickEvery = 10 * time.Millisecond
	// beatsPerSecond is how often heads of quiet channels are repeated.
	beatsPerSecond = 10
)

// shard owns the channels that hash to it. One goroutine runs it; everybody else
// posts to the inbox.
type shard struct {
	// immutable after newShard
	table *Table

	// from any goroutine
	inbox inbox
	ready atomic.Int64 // channels in stored

	// owned by the shard's goroutine
	channels map[string]*entry
	once     entry // sentinel: once.next is the most recently used of those not used often
	often    entry // the same of the others
	bytes    int64 // of all channels
	ofOften  int64 // of bytes, those of channels used often
	stored   queue // channels with a store that have publications, in order
	memory   queue // the same without a store
	watched  []*entry
	offers   map[string]*offers // by receiver
	quiet    quiet
	step     channel.Step
	current  *entry // that the step is about
	spare    []command
}

// entry is a channel with what its shard keeps beside it.
type entry struct {
	channel.Channel
	prev, next *entry    // in the list of those used often, or not
	came       time.Time // into the table
	used       time.Time
	often      bool  // used again after a while
	listed     bool  // in stored or memory
	quiet      bool  // waits for its head to be repeated
	watched    bool  // in watched
	gone       bool  // was let go
	bytes      int64 // what it counts
	handing    bool  // counted as one that waits to be handed over, or is on its way
}

// entryBytes is what a channel costs beside its name, tail and queue.
const entryBytes = 640

// queue is channels in order, each once.
type queue []*entry

func (q *queue) push(e *entry) { *q = append(*q, e) }

func (q *queue) pop() *entry {
	if len(*q) == 0 {
		*q = nil
		return nil
	}
	e := (*q)[0]
	(*q)[0] = nil
	*q = (*q)[1:]
	return e
}

// offers is channels that wait to be handed over to one router.
type offers struct{ first, rest queue }

func newShard(t *Table) *shard {
	s := &shard{
		table: t, inbox: newInbox(), channels: make(map[string]*entry), offers: make(map[string]*offers),
		quiet: quiet{after: t.cfg.QuietAfter},
	}
	s.once.prev, s.once.next = &s.once, &s.once
	s.often.prev, s.often.next = &s.often, &s.often
	s.step = channel.Step{Config: &t.cfg.Channel, Out: (*effects)(s)}
	return s
}

func (s *shard) post(c command) { s.inbox.post(c) }

func (s *shard) run(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	beat := time.NewTicker(time.Second / beatsPerSecond)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.inbox.wake:
			s.commands()
		case <-tick.C:
			s.clock()
			s.tick()
		case now := <-beat.C:
			s.clock()
			s.repeat(now)
		}
		s.numberMemory()
		s.shrink()
		if len(s.stored) > 0 {
			signal(s.table.wake)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *shard) commands() {
	s.clock()
	queue := s.inbox.take(s.spare)
	for i := range queue {
		c := &queue[i]
		switch c.kind {
		case cmdPublish:
			e := s.open(c.pub.Channel, c.pub.Namespace)
			s.current = e
			e.Publish(&s.step, c.pub) // it looks at no view, and holds no more than before
		case cmdAsk:
			q := c.x.(*channel.Question)
			s.on(s.find(q.Ask.Channel, q.Namespace), func(e *entry) { e.Ask(&s.step, q) })
		case cmdPage:
			q := c.x.(*channel.PageQuery)
			s.on(s.find(q.Channel, q.Namespace), func(e *entry) { e.Page(&s.step, q) })
		case cmdRead:
			r := c.x.(*channel.ReadAnswer)
			s.on(s.known(r.Query.Key.Channel, r.Query.Namespace), func(e *entry) {
				e.Read(&s.step, r.Query.Key, r.Query.Mark, &r.Result, r.Askers)
			})
		case cmdWritten:
			for _, r := range c.x.([]*channel.Run) {
				s.on(s.channels[r.Channel], func(e *entry) { e.Written(&s.step, r) })
			}
		case cmdCall:
			c.x.(func())()
		}
		*c = command{}
	}
	s.spare = queue
}

// clock has the steps that follow happen now. One reading serves all messages that wait.
func (s *shard) clock() { s.step.Now, s.step.Wall = time.Now(), s.table.cfg.Now() }

// on makes a step of one channel, and counts what it costs afterwards. The view is looked
// at anew for each: a router that stood still trusts nothing, not even within a turn.
func (s *shard) on(e *entry, f func(*entry)) {
	before := s.current
	s.current = e
	s.step.Look = s.table.deps.Views.Look(s.step.Now)
	f(e)
	s.current = before
	if e.prev != nil {
		s.count(e, entryBytes+2*int64(len(e.Name()))+e.Bytes()-e.bytes)
	}
	if now := e.HandingOver(); now != e.handing {
		e.handing = now
		if now {
			s.table.offered.Add(1)
		} else {
			s.table.offered.Add(-1)
		}
	}
}

func (s *shard) count(e *entry, delta int64) {
	e.bytes += delta
	s.bytes += delta
	s.table.cached.Add(delta)
	if e.often {
		s.ofOften += delta
	}
}

// open finds or makes a channel and marks it used.
func (s *shard) open(name string, ns *namespace.Namespace) *entry {
	e := s.channels[name]
	if e == nil {
		e = &entry{Channel: *channel.New(name, ns), came: s.step.Now}
		s.channels[name] = e
		s.table.channels.Add(1)
	}
	s.touch(e)
	return e
}

// find is open for a channel that is here, or ours by the view. Of another's nothing is
// kept.
func (s *shard) find(name string, ns *namespace.Namespace) *entry {
	if s.channels[name] == nil && !s.table.deps.Views.Owned(name) {
		return &entry{Channel: *channel.NewForeign(name, ns)}
	}
	return s.open(name, ns)
}

// known is a channel that is here; of others nothing is kept.
func (s *shard) known(name string, ns *namespace.Namespace) *entry {
	if e := s.channels[name]; e != nil {
		return e
	}
	return &entry{Channel: *channel.NewForeign(name, ns)}
}

// take makes runs of channels with a store, in order.
func (s *shard) take(events int, bytes int64) (runs []*channel.Run) {
	for events > 0 && bytes > 0 {
		e := s.stored.pop()
		if e == nil {
			break
		}
		e.listed = false
		s.ready.Add(-1)
		s.on(e, func(e *entry) {
			if r := e.Take(&s.step, events, bytes); r != nil {
				runs = append(runs, r)
				events -= len(r.Pubs)
				for _, p := range r.Pubs {
					bytes -= p.Size()
				}
			}
		})
	}
	return runs
}

// numberMemory numbers what has been published on channels without a store.
func (s *shard) numberMemory() {
	for e := s.memory.pop(); e != nil; e = s.memory.pop() {
		e.listed = false
		s.on(e, func(e *entry) { e.Take(&s.step, math.MaxInt, math.MaxInt64) })
	}
}

// viewed has every channel look at the view in force.
func (s *shard) viewed() {
	for _, e := range s.channels {
		s.on(e, func(e *entry) { e.Viewed(&s.step) })
	}
}

// tick looks at the channels that wait for a hand-over, or hold something up.
func (s *shard) tick() {
	if len(s.watched) == 0 {
		return
	}
	all := s.watched
	s.watched = nil
	for _, e := range all {
		e.watched = false
		s.on(e, func(e *entry) {
			if e.Tick(&s.step) {
				(*effects)(s).Watch()
			}
		})
	}
}

// pack takes channels out for a router: most channels, of so many bytes together but one.
func (s *shard) pack(to string, most int, bytes int64, size *int64) (all []*channel.Handed) {
	o := s.offers[to]
	if o == nil {
		return nil
	}
	for len(all) < most && *size < bytes {
		e := o.first.pop()
		if e == nil {
			e = o.rest.pop()
		}
		if e == nil {
			delete(s.offers, to)
			break
		}
		if e.gone {
			continue
		}
		s.on(e, func(e *entry) {
			if h := e.Give(&s.step, to); h != nil {
				*size += e.bytes // before the channel is counted without its tail
				all = append(all, h)
			}
		})
	}
	return all
}

// withdraw ends the waiting of channels that were offered to a router.
func (s *shard) withdraw(to string) {
	o := s.offers[to]
	if o == nil {
		return
	}
	delete(s.offers, to)
	for _, e := range append(o.first, o.rest...) {
		if !e.gone {
			s.on(e, func(e *entry) { e.Withdrawn(&s.step) })
		}
	}
}

// handed ends the hand-over of a channel.
func (s *shard) handed(h *channel.Handed, back bool) {
	e := s.channels[h.Meta.Channel]
	s.on(e, func(e *entry) {
		if back {
			e.Returned(&s.step, h)
		} else {
			e.Given(&s.step, h)
		}
	})
}
