package gateway

import "github.com/spillway-io/spillway/gateway/feed"

// subState says what a subscription waits for.
//
//	waiting --verdict--> pulling --caught up--> live
//	                        ^                     | the queue is full
//	                        +--queue drained-- behind
type subState uint8

const (
	subWaiting subState = iota // the table was asked and has not said where it stands
	subLive                    // the next event of the channel is the next of this client
	subBehind                  // events were let go; the table is asked when the queue has drained
	subPulling                 // the table was asked for the events after pos
)

func (s subState) String() string {
	switch s {
	case subLive:
		return "live"
	case subBehind:
		return "behind"
	case subPulling:
		return "pulling"
	}
	return "waiting"
}

// subscription is one conn's interest in one channel; owned by the loop.
// Once it is not waiting: pos <= the channel's head, and every event up to pos
// has been queued for the client, announced as lost, or was before its time.
type subscription struct {
	c          *conn
	channel    *localChannel
	id         uint64 // distinguishes it from earlier ones of the same conn
	epoch      uint64
	pos        uint64       // offset of the last event queued
	req        *request     // unanswered command that made it
	held       []feed.Frame // behind req's reply, in order
	last       uint32       // newest events asked for
	index      int32        // in channel.subs
	state      subState
	history    bool // holes can be filled
	asked      bool // the client gave a position: a loss makes it reload
	catchingUp bool // of the connect frame, and without its backfill
	parked     bool // pulling, but the router cannot answer now: the conn's others go on
}

// set keeps the conn's count of laggards.
func (s *subscription) set(state subState) {
	if s.state == subBehind {
		s.c.behind--
	}
	if s.state = state; state == subBehind {
		s.c.behind++
	}
	if state == subLive {
		s.caughtUp()
	}
}

// localChannel is this loop's part of the channel table.
type localChannel struct {
	name string
	subs []*subscription
}

func (ch *localChannel) add(s *subscription) {
	s.index = int32(len(ch.subs))
	ch.subs = append(ch.subs, s)
}

func (ch *localChannel) remove(s *subscription) {
	last := len(ch.subs) - 1
	moved := ch.subs[last]
	ch.subs[s.index] = moved
	moved.index = s.index
	ch.subs[last] = nil
	ch.subs = ch.subs[:last]
}
