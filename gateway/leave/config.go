package leave

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/gateway/targets"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Config is what a Governor is told once.
type Config struct {
	ID, Region string
	Born       time.Time     // of this edge: a drain that is older is not for it
	CloseWait  time.Duration // longest wait for the client's half of a close
	Log        *slog.Logger
	Registry   prometheus.Registerer
}

// Deps are the parts that a Governor works with.
type Deps struct {
	Edge       Edge
	Targets    *targets.View
	Operations Operations           // nil: only signals make the edge leave
	Peers      Peers                // nil: nobody can be asked, so that no room is granted
	Settings   func() *settings.Hot // those of now; from any goroutine
}

// Edge is the edge that leaves. None of it blocks, and any goroutine may call it.
type Edge interface {
	Ready() bool // it has joined and is not leaving
	Conns() int  // clients that count
	Held() int   // sockets of clients, those included that were left for another one
	// SetLeaving takes the edge out of balancers and of everybody's targets, or back.
	SetLeaving(on bool)
}

// Operations is what a cluster does at the moment (presence/control.Control). The
// reads do not block; the writes wait for the registry, until ctx ends.
type Operations interface {
	Operations() []*gatewayv1.Operation
	Changed() <-chan struct{}
	PutOperation(ctx context.Context, op *gatewayv1.Operation) error
	UpdateOperation(ctx context.Context, id string, change func(*gatewayv1.Operation) bool) error
}

// Peers is request-reply between edges (presence/nats.Messenger). Request waits for the
// answer until ctx ends; its error is presence.ErrBusAway if nothing could be sent. Serve
// calls answer for each question, one after the other, until ctx ends.
type Peers interface {
	Request(ctx context.Context, edge string, question []byte) ([]byte, error)
	Serve(ctx context.Context, edge string, answer func(question []byte) []byte) error
	Broadcast(topic string, message []byte) error
}

// Order is something for a loop to do to its conns.
type Order interface {
	// Apply runs on the goroutine of the loop whose part it is given.
	Apply(*Part)
}

// Conns is one event loop with its conns. Post may be called from any goroutine and does
// not block; the rest is for orders, on the loop's goroutine.
type Conns interface {
	// Post has the loop call o.Apply in a later turn.
	Post(o Order)
	// Slots is how many places for conns there are, At the conn in one; nil: it is free.
	Slots() int
	At(slot int) Conn
	// Find is the conn of a token, or nil.
	Find(token uint64) Conn
	// Now is the time of this turn, and the second in which Stay counts.
	Now() (time.Time, uint32)
}

// Conn is one client's conn, on its loop's goroutine.
type Conn interface {
	Token() uint64
	Mark() *Mark // for this package alone
	Kind() Kind
	Stay() *Stay // only if it is Movable or Critical
	// From is the client's address; not valid: it cannot be told.
	From() netip.Addr
	// Hint tells the client to go, and closes nothing; false: its queue was full.
	Hint(Hint) bool
	// ShutDown closes the conn because the edge leaves; false: it is closing already.
	ShutDown() bool
}

// Kind is what can be done with a conn in a departure.
type Kind uint8

const (
	Gone      Kind = iota // its client has left, or it is closing: nothing
	Unmovable             // its client cannot move: it is closed when its turn has come
	Movable
	Critical // movable, and goes first
)

// Hint is what a client is told (PROTOCOL.md, reconnect).
type Hint struct {
	Reason          string
	URL             string // "": the client's own list
	After, Deadline time.Duration

	// Granted: room is held for the client, and its ticket says so: for Operation, at
	// Target (member id; "": anywhere in the region), in its slot.
	Granted           bool
	Operation, Target string
	From, Until       time.Time
}

// Reason is why a conn's client is gone, as far as a departure tells.
type Reason uint8

const (
	OtherReason Reason = iota
	ShutDown           // it was closed by Conn.ShutDown
	Itself             // the client left, or has another conn that counts
)
