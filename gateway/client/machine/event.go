package machine

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// Position names the last event that somebody has of a channel.
type Position struct {
	Epoch  string // opaque
	Offset uint64 // 1, 2, 3 … without holes within the epoch; 0: before the first
}

// Event is one event of a channel. Its slices and maps belong to the application.
type Event struct {
	Channel string
	Position
	Data   []byte // compact JSON text, or any bytes if Binary
	Binary bool
	Time   time.Time // when it was numbered
	From   string    // the publishing user; empty: a backend
	Meta   map[string]string
}

// Subscribed tells where a subscription starts or goes on.
type Subscribed struct {
	// Position after which events follow. Zero while Pending.
	Position
	// Head of the channel when it was joined.
	Head uint64
	// Recovered: everything after the position that the client had follows.
	Recovered bool
	// Pending: the server cannot say yet. Nothing is lost; another Subscribed follows.
	Pending bool
}

// Skipped is the Reason of a Gap that no server told: an event came after one that is
// missing.
const Skipped = "skipped"

// Gap says that events are lost for this client. The application reloads what it
// needs by its own means, ReloadAfter from now (its own moment, so that not all
// clients do it at once).
type Gap struct {
	// From is the position before the loss, Position the one after it: the next event
	// follows it. In one epoch the lost ones are From.Offset+1 … Offset.
	From Position
	Position
	Reason      string
	ReloadAfter time.Duration
}

// NewEvent is an event as the application gets it.
func NewEvent(channel, epoch string, e *clientv1.Event) Event {
	return Event{
		Channel: channel, Position: Position{epoch, e.Offset}, Data: e.Data, Binary: e.Binary,
		Time: time.UnixMilli(int64(e.TimeMs)), From: e.From, Meta: e.Meta,
	}
}
