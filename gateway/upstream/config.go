// Package upstream is how an edge asks routers: questions about channels over one
// Sync stream to each router (feed.Asker), publishes and history reads as unary
// calls.
//
// Package feed calls Ask from its shards, package gateway calls Submit and
// ReadHistory from its pool. Run owns one goroutine and, for each router that was
// ever needed and is in the view, the two of its stream; all end with Run. Ask
// before Run or after it is answered unavailable.
//
// A stream is opened for its first question and then kept: reopened with backoff
// (at most 3 s) until its router leaves the view. Questions go to the owner of
// the channel; while its stream is down, to the next router in rendezvous order.
//
// Invariants: every Ask is answered exactly once, at the latest AskDeadline and
// 0.1 s later; an answer that comes after that is ignored. A router that answers
// nothing for the whole deadline of a question has its stream broken, so that
// others are asked.
//
// Limits: MaxAsks questions unanswered, what comes above is answered unavailable;
// messages of at most BatchAsks questions or about BatchBytes.
//
// Left out on purpose: what answers mean and when to ask again (package feed),
// connections (presence/peers).
package upstream

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/proto/schema"
)

// View tells which routers there are. Implemented by presence.Cluster.
type View interface {
	// Snapshot never blocks.
	Snapshot() *presence.Snapshot
}

// Peers has connections to routers. Implemented by peers.Peers. It is called from
// many goroutines and never waits for the network.
type Peers interface {
	Conn(m *presence.Member) (*grpc.ClientConn, error)
	// Down says that a call would fail before it is sent.
	Down(m *presence.Member) bool
}

// Config of an Upstream.
type Config struct {
	Edge  string `rule:"not empty"` // the edge's member id; required
	View  View   // required
	Peers Peers  // required

	Gather      time.Duration `default:"2ms" rule:"above 0s"`    // how long a question waits for others to travel with
	BatchAsks   int           `default:"500" rule:"above 0"`     // most questions in a message
	BatchBytes  int           `default:"64 KiB" rule:"above 0"`  // about the most bytes in a message
	AskDeadline time.Duration `default:"2s" rule:"above 0s"`     // of a question; then it is answered unavailable
	MaxAsks     int           `default:"100,000" rule:"above 0"` // questions unanswered
	OpenTimeout time.Duration `default:"3s" rule:"above 0s"`     // of opening a stream
	MinBackoff  time.Duration `default:"100ms" rule:"above 0s"`  // after a stream failed; doubled up to MaxBackoff
	MaxBackoff  time.Duration `default:"3s" rule:"above 0s"`
	CallTimeout time.Duration `default:"5s" rule:"above 0s"` // of a publish or a history read, fallback included

	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default returns the settings of a production edge; Edge, View and Peers are
// left to the caller.
func Default() Config { return schema.Default[Config]() }

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{schema.Validate(&c)}
	if c.View == nil || c.Peers == nil {
		errs = append(errs, errors.New("view, peers: nil: must be set"))
	}
	return errors.Join(errs...)
}
