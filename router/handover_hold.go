package router

import (
	"time"

	machine "github.com/spillway-io/spillway/router/channel"
)

// While a channel is being given nothing of it is taken: until its run has ended, then
// until its piece is answered. What waits for a run is parked, costs nothing, and holds
// up no other. How long publishes wait is bounded: after half of the time that a new
// owner waits for its hand they go on here, if the channel is still here, or are told to
// come again.

// parked is an offer that waits until nothing of its channel is in flight. The channel
// has it, guarded by its shard.
type parked struct {
	giver *giver
	offer offer
	next  *parked
}

// holding is a channel of which nothing is taken, or that is parked.
type holding struct {
	ch    *channel
	since time.Time
}

func (h *handover) holdFor() time.Duration { return h.cfg.HandoverWait / 2 }

// holdLocked begins to count; the channel's shard is locked.
func (h *handover) holdLocked(ch *channel, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, holding{ch, now})
}

// freeLocked ends all that holds a channel; its shard is locked.
func (ch *channel) freeLocked() { ch.moving, ch.turned = false, false }

// unblockLocked lets committers have a channel again; its shard is locked.
func (h *handover) unblockLocked(ch *channel) {
	ch.freeLocked()
	if ch.readyLocked() {
		h.router.sequencer.push(ch)
	}
}

// parkLocked lets an offer wait until nothing of its channel is in flight; its shard is
// locked. It is not tried for longer than the channel is served here.
func (g *giver) parkLocked(o offer, now time.Time) {
	h, ch := g.h, o.ch
	if o.since.IsZero() {
		o.since = now
	}
	if now.Sub(o.since) >= h.cfg.HandoverGrace {
		h.busyLocked(ch)
		return
	}
	// Suspects: only the next run finds out what became of them.
	if ch.moving = ch.inflight; !ch.moving {
		h.unblockLocked(ch)
	}
	ch.parked = &parked{g, o, ch.parked}
	h.holdLocked(ch, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	g.parked[ch] = true
}

// busyLocked gives up a channel of which something was in flight all the time: it stays.
func (h *handover) busyLocked(ch *channel) {
	ch.listed = false
	h.count.busy.Inc()
	h.unblockLocked(ch)
}

// idleLocked is called whenever something that was in flight has ended, without or with
// a result; the channel's shard is locked.
func (h *handover) idleLocked(ch *channel) {
	switch {
	case ch.parked == nil || ch.inflight:
	case len(ch.suspects) > 0:
		h.unblockLocked(ch)
	default:
		h.unparkLocked(ch)
	}
}

// unparkLocked brings parked offers back to their givers.
func (h *handover) unparkLocked(ch *channel) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := ch.parked; p != nil; p = p.next {
		if p.giver.over {
			continue // it looks for what it had
		}
		delete(p.giver.parked, ch)
		p.giver.urgent = append(p.giver.urgent, p.offer)
		signal(p.giver.wake)
	}
	ch.parked = nil
}

// unpark takes the offers of one giver from its channel, since the giver ends.
func (g *giver) unpark(ch *channel) {
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	ch.listed = false
	for at := &ch.parked; *at != nil; {
		if p := *at; p.giver == g {
			*at = p.next
		} else {
			at = &p.next
		}
	}
}

// relieve ends what holds channels for too long.
func (h *handover) relieve() {
	now := time.Now()
	edge := now.Add(-h.holdFor())
	h.mu.Lock()
	n := 0
	for n < len(h.holds) && !h.holds[n].since.After(edge) {
		n++
	}
	due := h.holds[:n:n]
	if h.holds = h.holds[n:]; len(h.holds) == 0 {
		h.holds = nil
	}
	h.mu.Unlock()
	for _, d := range due {
		d.ch.shard.mu.Lock()
		pubs := h.relieveLocked(d.ch, now)
		d.ch.shard.mu.Unlock()
		h.router.sequencer.turnAway(pubs)
	}
}

// relieveLocked does so for one channel; it returns what was published on it and must
// come again.
func (h *handover) relieveLocked(ch *channel, now time.Time) []*machine.Publication {
	switch {
	case ch.parked != nil:
		if now.Sub(ch.parked.offer.since) < h.cfg.HandoverGrace {
			h.holdLocked(ch, now) // its own run holds it
			return nil
		}
		h.dropParkedLocked(ch)
	case !ch.moving:
	case ch.tenure.state == tenureGiven:
		ch.turned = true
		return ch.takeBackLocked()
	default: // the giver is busy with something else
		h.unblockLocked(ch)
	}
	return nil
}

// dropParkedLocked gives a channel up that was busy for too long.
func (h *handover) dropParkedLocked(ch *channel) {
	h.mu.Lock()
	for p := ch.parked; p != nil; p = p.next {
		delete(p.giver.parked, ch)
		signal(p.giver.wake)
	}
	h.mu.Unlock()
	ch.parked = nil
	h.busyLocked(ch)
}

// takeBackLocked empties the queue of a channel.
func (ch *channel) takeBackLocked() []*machine.Publication {
	pubs := ch.pending
	ch.pending, ch.pendingBytes = nil, 0
	return pubs
}

// turnAway tells publishers to come again; nothing of theirs was begun.
func (s *sequencer) turnAway(pubs []*machine.Publication) {
	for _, p := range pubs {
		switch {
		case p.Take():
			s.metrics.handover.turned.Inc()
			if p.Uncertain {
				s.finish(p, machine.UnknownOutcome)
			} else {
				s.finish(p, machine.NotOwner)
			}
		case p.Stage() == machine.Abandoned:
			s.metrics.abandoned.Inc()
			s.release(p)
		}
	}
}
