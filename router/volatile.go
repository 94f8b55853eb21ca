package router

import (
	"context"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// Channels of namespaces without a store live in their owner's memory: epoch,
// head, tail and recent keys die with it, or when the view gives them to another.
// There is no fence, so only who holds them (handover_tenure.go) numbers them; a new
// owner that was not handed one begins a new epoch, larger than every earlier one.

// epochShift leaves room below the revision for epochs begun within it.
const epochShift = 20

// recentKeysMax bounds the idempotency keys that a volatile channel remembers.
const recentKeysMax = 256

// keyBytes is what a recent key costs beside its strings.
const keyBytes = 112

// recentKeys is the newest keys, oldest first out.
type recentKeys struct {
	offsets map[history.Key]uint64
	order   []history.Key
	bytes   int64
}

func keySize(k history.Key) int64 { return keyBytes + int64(len(k.Scope)+len(k.Key)) }

func (k *recentKeys) put(key history.Key, offset uint64) {
	if len(k.order) == recentKeysMax {
		oldest := k.order[0]
		k.order = k.order[1:]
		delete(k.offsets, oldest)
		k.bytes -= keySize(oldest)
	}
	k.offsets[key] = offset
	k.order = append(k.order, key)
	k.bytes += keySize(key)
}

// countKeysLocked counts what the keys of a channel cost by now; its shard is locked.
func (t *table) countKeysLocked(ch *channel) {
	bytes := int64(0)
	if ch.keys != nil {
		bytes = ch.keys.bytes
	}
	t.accountLocked(ch, bytes-ch.keyBytes)
	ch.keyBytes = bytes
}

// unseenEvery is how often what an edge says makes a channel of memory begin an epoch.
const unseenEvery = 5 * time.Second

// unseenLocked says that an epoch seen by an edge shows an owner that we never saw.
// Not at once again, so that an edge that errs cannot make us begin epoch after epoch.
func (s *sequencer) unseenLocked(ch *channel, seen uint64) bool {
	if !ch.known || seen <= ch.epoch {
		return false
	}
	if time.Since(ch.claimed) < unseenEvery {
		s.metrics.claimsRefused.Inc()
		return false
	}
	ch.claimed = time.Now()
	return true
}

// nextEpoch is larger than after, and than what any owner before this one began. Of one
// view none is begun again, also of channels that were evicted: what is begun past
// the generation takes that along.
func (s *sequencer) nextEpoch(after uint64) uint64 {
	view := s.own.revision() << epochShift
	for {
		generation := s.generation.Load()
		epoch := max(view+generation, after+1)
		ahead := epoch - view
		if ahead <= generation || ahead >= 1<<epochShift || s.generation.CompareAndSwap(generation, ahead) {
			return epoch
		}
	}
}

// volatileLocked readies a channel without a store, if it is our turn. An epoch seen
// by an edge that is above ours shows an owner that we never saw.
func (s *sequencer) volatileLocked(ch *channel, seen uint64) turn {
	turn := s.hand.turnLocked(ch)
	if turn != turnServe {
		return turn
	}
	t := s.own.now()
	if !ch.known || s.unseenLocked(ch, seen) {
		s.table.moveLocked(ch, s.nextEpoch(max(seen, ch.epoch, ch.tenure.floor.epoch)), 0)
		ch.floor = 1
		ch.keys = nil
		s.table.countKeysLocked(ch)
	}
	ch.trust = t
	return turnServe
}

// commitVolatile numbers and fans out; there is nothing that could fail.
func (s *sequencer) commitVolatile(_ context.Context, batch []*work) error {
	for _, w := range batch {
		s.commitOneVolatile(w)
	}
	return nil
}

func (s *sequencer) commitOneVolatile(w *work) {
	ch := w.ch
	ch.shard.mu.Lock()
	switch s.volatileLocked(ch, 0) {
	case turnWait:
		ch.shard.mu.Unlock()
		w.back = w.pubs
		return
	case turnPass:
		ch.shard.mu.Unlock()
		s.finishAll(w.pubs, machine.NotOwner)
		return
	}
	epoch, head, now := ch.epoch, ch.head, s.cfg.Now().UnixMilli()
	var slab eventSlab
	events := make([]*gatewayv1.BusEvent, 0, len(w.pubs))
	results := make([]machine.Result, len(w.pubs))
	for i, p := range w.pubs {
		offset, repeat := ch.keyed(p, head+uint64(len(events))+1)
		results[i] = machine.Result{Epoch: epoch, Offset: offset, Repeat: repeat, Durability: namespace.None}
		if !repeat {
			p.Event.Offset, p.Event.TimeMS = offset, now
			b := slab.next(len(w.pubs) - i)
			fillEvent(b, &p.Event)
			events = append(events, b)
		}
	}
	s.table.countKeysLocked(ch)
	if len(events) > 0 {
		s.table.grewLocked(ch, events, s.bounds())
		s.fan.publishedLocked(ch)
	}
	base := ch.baseLocked(epoch, head)
	ch.shard.mu.Unlock()
	if len(events) > 0 {
		s.fan.out(ch.name, epoch, base, events)
	}
	for i, p := range w.pubs {
		s.finish(p, results[i])
	}
}

// keyed answers the offset of p: next, or that of the first with its key.
func (ch *channel) keyed(p *machine.Publication, next uint64) (offset uint64, repeat bool) {
	if p.Event.Key == "" {
		return next, false
	}
	if ch.keys == nil {
		ch.keys = &recentKeys{offsets: make(map[history.Key]uint64)}
	}
	if offset, ok := ch.keys.offsets[p.Key()]; ok {
		return offset, true
	}
	ch.keys.put(p.Key(), next)
	return next, false
}
