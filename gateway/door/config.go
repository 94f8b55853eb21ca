package door

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/load"
	"github.com/spillway-io/spillway/gateway/targets"
	"github.com/spillway-io/spillway/gateway/ticket"
)

// Config is what the door is told once; gateway.Config says what each means, and has
// checked it.
type Config struct {
	ID, Region       string
	Origins          []string
	TrustedProxies   []netip.Prefix
	TLS              *tls.Config // nil: plain sockets
	MaxHandshakes    int
	HandshakeTimeout time.Duration

	Log      *slog.Logger
	Registry prometheus.Registerer
	Series   *load.Series // the windows in which arrivals are counted
}

// Deps are the parts that the door works with.
type Deps struct {
	Listener poller.Listener
	Poller   poller.Poller
	Reserve  *poller.Reserve // nil where descriptors do not matter
	Loops    []Loop          // admitted sockets go to them in turns

	Members targets.Membership
	Targets *targets.View
	Tickets Tickets
	Lag     Lag // nil: nobody tells

	// Submit queues a short job of CPU on the edge's pool; false: the queue is full.
	Submit func(job func()) bool
	// Conns is how many are admitted, and neither gone nor superseded.
	Conns func() int
	// Spent hears the mark of a ticket that is good once and was used here. It does not
	// block; the other edges are told.
	Spent func(mark uint64)
}

// Loop is an event loop as the door sees it. Neither method blocks.
type Loop interface {
	// Adopt takes over an admitted socket and counts it among Deps.Conns before it returns.
	Adopt(*Admitted)
	// Probe has the loop call Answer on its own goroutine when its turn comes.
	Probe(*Probe)
}

// Tickets are the edge's. Any goroutine may call them; they cost microseconds of CPU.
type Tickets interface {
	// Open reads a ticket; the error says that it is not good.
	Open(text string, now time.Time) (*ticket.Ticket, error)
	// Seal mints one.
	Seal(t ticket.Ticket, claims *auth.Claims, now time.Time) (string, error)
	// Revoked says that a token was revoked.
	Revoked(user, tokenID string, issued time.Time) bool
}

// Lag tells how far behind the routers are with backfill; it does not block.
type Lag interface {
	// BackfillLag is the worst that a router told of late; 0: none.
	BackfillLag() time.Duration
}

// Admitted is a socket whose WebSocket handshake is done, with its 101 written.
type Admitted struct {
	Sock poller.Conn
	Rest []byte // read behind the request
	// Ticket is what was opened of the subprotocol's; nil: none that is good. It counts
	// like one in the connect frame.
	Ticket *ticket.Ticket
	Client *netip.Addr // nil: the socket's own; not valid: it cannot be told
	At     time.Time
}
