package router

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// shards splits the table of channels: a lock is held for map and slice work
// only, never across a call, a send or I/O.
const shards = 64

// entryBytes is what a channel costs beside its name, tail and queue.
const entryBytes = 536

// channel is what this router knows of one channel. All of it is soft: for a
// committed channel the store knows better. Guarded by its shard's mu.
//
//	tail.first + len(tail.events) == head + 1     or the tail is empty
//	pending is in order of arrival; at most one run is in flight
type channel struct {
	name  string
	ns    *namespace.Namespace
	shard *shard

	// position: a fact of some moment, so a lower bound of the truth
	known   bool // epoch and head are set
	epoch   uint64
	head    uint64
	floor   uint64 // oldest offset that the store had when it was last read; 0: not known
	version uint64 // counts changes of epoch and head
	base    point  // epoch, and the head that it was first known with: what is older may be of another

	// shown is the highest position that the store, an edge or another router has
	// shown; it outlives forgetting. A store below it has lost history.
	shown   point
	claimed time.Time // when an edge alone last brought about a new epoch

	trust trust     // when epoch, head and tail were last known to be the truth
	late  time.Time // a run of unknown outcome may land until then: memory alone is no answer
	tail  tail

	// publishes
	pending      []*machine.Publication
	pendingBytes int
	ready        bool      // in the sequencer's ready list
	inflight     bool      // a committer has a run of it
	suspects     []suspect // runs whose outcome is unknown; none later was stored yet

	keys     *recentKeys // of a channel that its owner's memory numbers
	keyBytes int64       // of them, counted in bytes

	// handing over (handover.go)
	tenure  tenure   // whether we may number it
	settled uint64   // revision up to which a hand vouches for the position; 0: none does
	listed  bool     // waits to be given
	moving  bool     // is being given: nothing of it is taken until that has ended
	turned  bool     // moving, for too long: what is published is told to come again
	parked  *parked  // offers that wait until nothing of it is in flight
	waiters []func() // called, without locks, when the awaiting ends

	lastPublish time.Time
	quietQueued bool // waits in the repeater's list

	// list of the shard that it is in
	prev, next *channel
	came       time.Time // into the table
	used       time.Time
	often      bool      // used again after a while: in the list of those
	kept       time.Time // when the store was last told of its use, or had events of it
	bytes      int64     // what it counts in the cache
}

// shard is a part of the table.
type shard struct {
	mu       sync.Mutex // guards all below and every channel in it
	channels map[string]*channel
	once     channel // sentinel: once.next is the most recently used of those not used often
	often    channel // the same of the others
}

// A channel that is used again oftenAfter or later after it came is used often. Those that
// came for one question, or one publish, go first as long as they have a quarter of
// the bytes: a storm of returning clients, or a scan over a million channels, so lets go
// of itself and not of what is published on all day. Two questions in a row, as each
// client asks that comes back, are one use.
const oftenAfter = 10 * time.Second

// table holds the channels that this router knows, bounded in bytes: past the
// bound the least recently used go whole, head and tail.
//
//	0 <= often <= bytes
type table struct {
	seed     maphash.Seed
	limit    int64
	metrics  *metrics
	shards   [shards]shard
	bytes    atomic.Int64
	often    atomic.Int64 // of bytes, those of channels used often
	channels atomic.Int64
	evicting atomic.Bool
	volatile func() // called before channels that memory numbers are evicted; a shard is locked
}

func newTable(limit int64, m *metrics) *table {
	t := &table{seed: maphash.MakeSeed(), limit: limit, metrics: m, volatile: func() {}}
	for i := range t.shards {
		s := &t.shards[i]
		s.channels = make(map[string]*channel)
		s.once.prev, s.once.next = &s.once, &s.once
		s.often.prev, s.often.next = &s.often, &s.often
	}
	return t
}

// lock returns the locked shard of a channel.
func (t *table) lock(name string) *shard {
	s := &t.shards[maphash.String(t.seed, name)%shards]
	s.mu.Lock()
	return s
}

// getLocked finds or makes a channel and marks it used.
func (t *table) getLocked(s *shard, name string, ns *namespace.Namespace) *channel {
	now := time.Now()
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name, ns: ns, shard: s, came: now}
		s.channels[name] = ch
		t.channels.Add(1)
		t.accountLocked(ch, entryBytes+2*int64(len(name)))
	} else {
		ch.unlink()
	}
	ch.used = now
	if !ch.often && now.Sub(ch.came) >= oftenAfter {
		ch.often = true
		t.often.Add(ch.bytes)
	}
	list := &s.once
	if ch.often {
		list = &s.often
	}
	ch.prev, ch.next = list, list.next
	ch.prev.next, ch.next.prev = ch, ch
	return ch
}

func (ch *channel) unlink() {
	ch.prev.next, ch.next.prev = ch.next, ch.prev
	ch.prev, ch.next = nil, nil
}

func (t *table) accountLocked(ch *channel, delta int64) {
	ch.bytes += delta
	t.bytes.Add(delta)
	if ch.often {
		t.often.Add(delta)
	}
}

// busyLocked says that a committer or a queue refers to the channel.
func (ch *channel) busyLocked() bool {
	return ch.inflight || ch.ready || len(ch.pending) > 0 || len(ch.suspects) > 0 ||
		ch.listed || ch.moving || len(ch.waiters) > 0
}

// shrink evicts until the table is a sixteenth below its bound. Whoever made it
// grow calls it, without locks; one caller does the work.
func (t *table) shrink() {
	if t.bytes.Load() <= t.limit || !t.evicting.CompareAndSwap(false, true) {
		return
	}
	defer t.evicting.Store(false)
	for t.bytes.Load() > t.limit-t.limit/16 {
		often := t.bytes.Load()-t.often.Load() <= t.limit/4
		s := t.oldestShard(often)
		if s == nil {
			often = !often
			s = t.oldestShard(often)
		}
		if s == nil {
			break // all busy: queues are bounded by themselves
		}
		t.evictSome(s, often)
	}
}

// oldestShard is the one whose least recently used idle channel, of those used often or
// of the others, is the oldest.
func (t *table) oldestShard(often bool) *shard {
	var found *shard
	var oldest time.Time
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		if ch := s.idlestLocked(often); ch != nil && (found == nil || ch.used.Before(oldest)) {
			found, oldest = s, ch.used
		}
		s.mu.Unlock()
	}
	return found
}

func (s *shard) idlestLocked(often bool) *channel {
	list := &s.once
	if often {
		list = &s.often
	}
	for ch := list.prev; ch != list; ch = ch.prev {
		if !ch.busyLocked() {
			return ch
		}
	}
	return nil
}

// evictSome lets some of the oldest channels of a shard go: a batch, since
// finding the shard costs a look at all.
func (t *table) evictSome(s *shard, often bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := false
	for range 8 {
		ch := s.idlestLocked(often)
		if ch == nil || t.bytes.Load() <= t.limit-t.limit/16 {
			return
		}
		if !told && ch.known && ch.ns.Durability != namespace.Committed {
			told = true
			t.volatile()
		}
		t.dropLocked(ch)
		t.metrics.evictions.Inc()
	}
}

func (t *table) dropLocked(ch *channel) {
	if ch.quietQueued { // the list has it still, with nothing to repeat and to hold on to
		ch.known = false
		t.clearTailLocked(ch)
	}
	ch.unlink()
	delete(ch.shard.channels, ch.name)
	t.channels.Add(-1)
	t.accountLocked(ch, -ch.bytes)
}

// forgetLocked drops what is believed of a channel: the next look at it loads.
func (t *table) forgetLocked(ch *channel) {
	ch.known, ch.epoch, ch.head, ch.floor = false, 0, 0, 0
	ch.version++
	ch.trust = trust{}
	ch.settled = 0
	t.clearTailLocked(ch)
}

// baseLocked is where an epoch began, as far as is known: at the latest at offset.
func (ch *channel) baseLocked(epoch, offset uint64) uint64 {
	if ch.base.epoch != epoch {
		return offset
	}
	return min(ch.base.offset, offset)
}

func (t *table) clearTailLocked(ch *channel) {
	t.accountLocked(ch, -ch.tail.bytes)
	ch.tail = tail{}
}

// moveLocked sets a new position that no event of ours led to.
func (t *table) moveLocked(ch *channel, epoch, head uint64) {
	if ch.known && ch.epoch == epoch && ch.head == head {
		return
	}
	ch.known, ch.epoch, ch.head = true, epoch, head
	ch.shown = ch.shown.max(point{epoch, head})
	if ch.base.epoch != epoch {
		ch.base = point{epoch, head}
	}
	ch.floor = 0
	if head == 0 {
		ch.floor = 1 // nothing can be missing
	}
	ch.version++
	t.clearTailLocked(ch)
}

// grewLocked takes events that follow the head; the position was right, or the
// store would have refused them.
func (t *table) grewLocked(ch *channel, events []*gatewayv1.BusEvent, keep tailBounds) {
	if len(ch.tail.events) == 0 {
		ch.tail.first = events[0].Offset
	}
	before := ch.tail.bytes
	ch.tail.append(events, keep)
	ch.head = events[len(events)-1].Offset
	ch.shown = ch.shown.max(point{ch.epoch, ch.head})
	ch.version++
	t.accountLocked(ch, ch.tail.bytes-before)
}

// refillLocked puts events that a read found, up to the head, before or in place
// of a shorter tail.
func (t *table) refillLocked(ch *channel, events []*gatewayv1.BusEvent) {
	if len(events) <= len(ch.tail.events) || events[len(events)-1].Offset != ch.head {
		return
	}
	t.clearTailLocked(ch)
	ch.tail.first = events[0].Offset
	ch.tail.append(events, tailBounds{})
	t.accountLocked(ch, ch.tail.bytes)
}
