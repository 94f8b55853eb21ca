package feed

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// step is one turn of the state machines of a shard: what time it is, the rules,
// and what comes of it. The shard fills in now, calls a method of a feed, and
// carries out what is in out, in order.
type step struct {
	// immutable
	cfg    *Config
	jitter func(time.Duration) time.Duration // random, from zero up to its argument

	now    time.Time
	again  float64 // pulls that may be asked for again now
	held   int     // bytes held by all feeds of the shard
	budget int     // most of them
	out    []action
	count  [numCounts]int
}

// count names what the state machines count.
type count uint8

const (
	countEvents     count = iota // delivered in order
	countDuplicates              // had already
	countStale                   // of an older epoch
	countHoldFull                // let go: no room to hold them
	countTurn                    // let go: the channel waits for its turn to be repaired
	countIdle                    // nobody subscribes any more
	countHoles                   // jumps seen
	countRepairs                 // holes that time did not fill
	countBehind                  // of those, found by a check of the head
	countPutOff                  // repetitions of a pull that found the pace used up
	countBadAnswers              // answers that contradict themselves or what was seen
	numCounts
)

type actionKind uint8

const (
	actLive  actionKind = iota // frames to all sinks
	actGap                     // from, offset, reason to all sinks
	actPiece                   // piece to sink
	actAsk                     // ask
	actTurn                    // the feed wants a turn to repair
	actDone                    // the feed gives its turn back
	actRenew                   // tell the bus of the interest anew
	actCheck                   // the head check came to nothing: do it again later
	actDrop                    // nobody is interested any more
)

// action is something that a state machine wants its shard to do.
type action struct {
	kind    actionKind
	epoch   uint64
	from    uint64
	offset  uint64
	history bool
	reason  Reason
	frames  []Frame
	sink    int
	piece   *Piece
	ask     *gatewayv1.Ask
	flight  flight
	after   time.Duration // of actCheck: what the router said
}

// askKind says what an ask is for.
type askKind uint8

const (
	askPull askKind = iota
	askRepair
	askHead
	numAskKinds
)

func (k askKind) String() string { return [...]string{"pull", "repair", "head"}[k] }

// flight is what is remembered of an ask until its answer comes.
type flight struct {
	kind   askKind
	f      *feed
	group  *group // of askPull
	epoch  uint64 // position asked for
	offset uint64
	seen   uint64 // what the ask said had been seen, in epoch
}

func (s *step) do(a action) { s.out = append(s.out, a) }

// retry is the wait before the n-th repetition of an ask. A router that says when
// to come back is obeyed; either way whoever waits is spread.
func (s *step) retry(n uint8, afterMS uint32) time.Duration {
	if afterMS > 0 {
		after := time.Duration(min(afterMS, 60_000)) * time.Millisecond
		return after + s.jitter(max(after, s.cfg.MinRetry))
	}
	wait := s.cfg.MinRetry << min(n, 10)
	if wait > s.cfg.MaxRetry {
		wait = s.cfg.MaxRetry
	}
	return wait/2 + s.jitter(wait)
}
