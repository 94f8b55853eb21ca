package router

import (
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// handPieceBytes bounds a piece, below the receiver's limit for a message; one event
// may pass it.
const handPieceBytes = 2 << 20

// handPieceChannels bounds a piece too: all of it waits until it is answered.
const handPieceChannels = 200

// handLively is how young the newest event of a channel is whose head the new owner
// repeats.
const handLively = 5 * time.Second

// gift is a channel that was taken out of the table to be handed. Its events are
// shared with answers that are under way and never change.
type gift struct {
	ch       *channel
	revision uint64
	meta     *gatewayv1.HandedChannel // without events and keys
	events   []*gatewayv1.BusEvent
	keys     []*gatewayv1.HandedKey
	done     int // events that are in pieces
}

// packLocked takes all that is known of a channel; its shard is locked.
func (h *handover) packLocked(ch *channel, revision uint64) *gift {
	stored := ch.ns.Durability == namespace.Committed
	g := &gift{ch: ch, revision: revision, events: ch.tail.events, meta: &gatewayv1.HandedChannel{
		Channel: ch.name, Epoch: ch.epoch, Head: ch.head, Floor: ch.floor, Stored: stored, Base: ch.baseLocked(ch.epoch, ch.head),
		Settled: !stored || h.own.settled(ch.name, ch.trust, ch.settled) && !time.Now().Before(ch.late),
	}}
	if ch.keys != nil {
		for _, k := range ch.keys.order {
			g.keys = append(g.keys, &gatewayv1.HandedKey{Scope: k.Scope, Key: k.Key, Offset: ch.keys.offsets[k]})
		}
	}
	return g
}

// handPiece is one message of a hand.
type handPiece struct {
	request *gatewayv1.HandRequest
	gifts   []*gift // of which something is in it
	size    int
}

func newHandPiece(g *giver, seq uint64) *handPiece {
	return &handPiece{request: &gatewayv1.HandRequest{Router: g.h.cfg.ID, Life: g.id, Seq: seq}}
}

func (p *handPiece) full() bool {
	return p.size >= handPieceBytes || len(p.gifts) >= handPieceChannels
}

// add puts as much of a channel into the piece as fits; true: all that was left.
func (p *handPiece) add(g *gift) bool {
	c := proto.CloneOf(g.meta)
	size := proto.Size(c) + 16
	for _, k := range g.keys {
		size += len(k.Scope) + len(k.Key) + 16
	}
	if len(p.gifts) > 0 && p.size+size > handPieceBytes {
		p.size = handPieceBytes
		return false
	}
	first := g.done
	for g.done < len(g.events) {
		next := proto.Size(g.events[g.done]) + 8
		if (len(p.gifts) > 0 || g.done > first) && p.size+size+next > handPieceBytes {
			break
		}
		size += next
		g.done++
	}
	c.Events, c.More = g.events[first:g.done], g.done < len(g.events)
	if !c.More {
		c.Keys = g.keys
	}
	p.request.Revision = max(p.request.Revision, g.revision)
	p.request.Channels = append(p.request.Channels, c)
	p.gifts = append(p.gifts, g)
	if p.size += size; c.More {
		p.size = handPieceBytes
	}
	return !c.More
}

// received is a channel as it was handed, all its parts together.
type received struct {
	meta     *gatewayv1.HandedChannel
	revision uint64
	events   []*gatewayv1.BusEvent
	bytes    int64
}

// takeLocked puts a channel that was handed into the table; false: it is late, or
// known already. Its shard is locked.
func (h *handover) takeLocked(ch *channel, r *received) bool {
	m, t := r.meta, &ch.tenure
	if m.Stored != (ch.ns.Durability == namespace.Committed) {
		return false // the routers' configurations differ
	}
	v := h.own.look(ch.name, ch.known, t, time.Now())
	have := ch.known && (ch.epoch > m.Epoch || ch.epoch == m.Epoch && ch.head >= m.Head) ||
		m.Stored && ch.shown.above(point{m.Epoch, m.Head}) // the store has had more
	if !t.accept(&v, r.revision, standing{epoch: m.Epoch, head: m.Head, moves: m.Moves, stored: m.Stored}, have) {
		if ch.known && ch.epoch == m.Epoch && ch.head == m.Head && len(r.events) > 0 {
			h.table.refillLocked(ch, r.events)
		}
		return false
	}
	loaded := ch.known // an older position: what is newer than it was numbered elsewhere
	h.table.forgetLocked(ch)
	h.table.moveLocked(ch, m.Epoch, m.Head)
	ch.base = point{m.Epoch, m.Base}
	if n := len(r.events); n > 0 && r.events[n-1].Offset == m.Head {
		h.table.refillLocked(ch, r.events)
	}
	if m.Floor > 0 {
		ch.floor = m.Floor
	}
	if !m.Stored {
		ch.keys = keysOf(m.Keys)
		h.table.countKeysLocked(ch)
	}
	if m.Settled && !loaded {
		ch.trust, ch.settled = h.own.now(), r.revision
		if v.owner == v.self {
			ch.settled = max(ch.settled, v.revision)
		}
	}
	if n := len(r.events); n > 0 && h.cfg.Now().UnixMilli()-int64(r.events[n-1].TimeMs) < handLively.Milliseconds() {
		h.router.fan.publishedLocked(ch) // its head is repeated: the giver does that no more
	}
	return true
}

func keysOf(handed []*gatewayv1.HandedKey) *recentKeys {
	if len(handed) == 0 {
		return nil
	}
	keys := &recentKeys{offsets: make(map[history.Key]uint64)}
	for _, k := range handed {
		keys.put(history.Key{Scope: k.Scope, Key: k.Key}, k.Offset)
	}
	return keys
}

// restore puts a gift back that was not taken.
func (h *handover) restore(g *gift) {
	ch := g.ch
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	m := proto.CloneOf(g.meta)
	m.Keys, m.Moves = g.keys, m.Moves+1
	// Revision 0: what the views say counts from now on.
	h.takeLocked(ch, &received{meta: m, events: g.events})
	now := time.Now()
	v := h.own.look(ch.name, ch.known, &ch.tenure, now)
	if ch.tenure.due(&v) != "" {
		ch.tenure.lost = now // it is served here until another can take it
	}
}
