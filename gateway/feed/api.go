package feed

import (
	"context"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Frame is one event, encoded once for all local subscribers; immutable.
type Frame struct {
	Offset uint64
	Text   []byte // what Config.Encode made of the event
}

// Sink is one event loop. Its methods are called from a shard's goroutine, must
// not block and must not call back into the table. For one channel the order of
// calls, Piece included, is the order of events. Slices are shared with other
// sinks: they may be kept and must not be changed.
type Sink interface {
	// Live has the next events of a channel, in order. A subscriber that is live
	// at position p takes those from p+1 on and passes over those up to p (it may
	// have been told of them before the others).
	Live(channel string, epoch uint64, frames []Frame, hasHistory bool)
	// Gap says that events are lost: a live subscriber goes on behind them. A new epoch
	// begins with Gap too, before its first event: at 0 if it can be had from its
	// first event on. A live subscriber that already is in this epoch, at Offset or
	// past it, passes over it; one that is there and before From was not given all
	// that Live had, and pulls.
	Gap(g Gap)
	// Piece answers a Pull.
	Piece(p Piece)
}

// Gap is a run of events of a channel that cannot be had: those after From, up to
// Offset. From <= Offset; at the beginning of an epoch they may be the same.
type Gap struct {
	Channel      string
	Epoch        uint64
	From, Offset uint64
	Reason       Reason
}

// Reason says why events were lost. The values are told to clients.
type Reason = string

// The reasons of a Gap.
const (
	ReasonHistory   Reason = "history"    // history has no longer the range
	ReasonNoHistory Reason = "no_history" // the namespace keeps none
	ReasonEpoch     Reason = "epoch"      // a new run of the channel began
)

// Pull asks for the events of a channel after a position, and to join the live
// flow behind them. One outstanding Pull for each (Sink, Conn, Sub).
type Pull struct {
	Sink      int    // index of the sink that hears the Piece
	Conn, Sub uint64 // echoed
	Channel   string

	HasPosition   bool // events after (Epoch, Offset) are wanted
	Epoch, Offset uint64
	Last          uint32 // instead of a position: the newest events

	OpenOnly bool // the client's credentials do not name the channel
	MaxBytes int  // of encoded frames in the Piece; at least one frame comes
	First    bool // a new subscription: the router's verdict is wanted, always
}

// Status is what became of a Pull.
type Status uint8

// The statuses of a Piece.
const (
	// Pending is told once for a pull, when the router cannot answer now; the
	// table goes on asking by itself and another Piece follows.
	Pending Status = iota
	OK
	Forbidden
	NotFound
	Invalid
)

func (s Status) String() string {
	return [...]string{"pending", "ok", "forbidden", "not_found", "invalid"}[s]
}

// Piece answers a Pull. With any status but OK only Conn, Sub, Channel, Status
// and Message are set; all but Pending end the Pull.
type Piece struct {
	Conn, Sub uint64
	Channel   string
	Status    Status
	Message   string // for the client, with Forbidden, NotFound and Invalid

	Epoch uint64
	// Head is the newest offset: every event up to it is in Frames or, with Live
	// false, can be pulled. If the position was not recovered (or none was given, nor
	// Last) the subscriber begins at Head.
	Head uint64
	// Recovered: a position was given, and every event after it follows. False
	// with a position: they are lost up to From. Of a First pull that is the head; any
	// other goes on with what history still has.
	Recovered bool
	// From is the position before the first of Frames; without Frames, where the
	// subscriber stands now.
	From   uint64
	Frames []Frame // From+1, From+2, ...
	// Live: nothing is missing after Frames. The calls of Live that follow have
	// every event after the last of Frames (or From).
	Live bool
	// Next is the position to pull from, once this piece has drained, if not Live.
	Next       uint64
	HasHistory bool // of the namespace: holes can be filled
}

// Bus carries envelopes (gatewayv1.Envelope, encoded) of channels that somebody
// is interested in, at most once. Implemented by gateway/bus.
type Bus interface {
	// Interest begins delivery of a channel to a shard; idempotent. It may wait for
	// a socket write, not for an answer. While the bus is away it is remembered.
	Interest(channel string, shard int) error
	// Renew tells the bus of an interest anew: it seems to have forgotten.
	Renew(channel string, shard int) error
	// Drop ends delivery of a channel; idempotent. Messages under way may follow.
	Drop(channel string, shard int)
	// Receive waits for messages of a shard and appends them to into, one at least
	// and no more than it has room for; an error only if ctx ended. One goroutine a
	// shard calls it, again at once. The bytes are the caller's and never change.
	Receive(ctx context.Context, shard int, into [][]byte) ([][]byte, error)
	// Disruptions counts the times that messages of a shard may have been lost on
	// this side: the connection came back, a queue was full.
	Disruptions(shard int) uint64
}

// Asker asks routers about channels. Implemented by gateway/upstream.
type Asker interface {
	// Ask takes ownership of a and never blocks. to.Answer is called exactly once
	// for it, with the same Id, within three seconds, from any goroutine, perhaps
	// before Ask returns: STATUS_UNAVAILABLE if no router could.
	Ask(a *gatewayv1.Ask, to Answerer)
}

// Answerer hears answers; it never blocks. Ids are the Answerer's own. The
// answer is its from then on.
type Answerer interface {
	Answer(a *gatewayv1.Answer)
}

// View tells who owns channels. Implemented by presence.Cluster.
type View interface {
	// Snapshot never blocks; the same pointer as long as nothing changed.
	Snapshot() *presence.Snapshot
	// LastHeard is when a member was last heard on the bus; zero: never.
	LastHeard(key presence.Key) time.Time
}
