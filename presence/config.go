package presence

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/proto/schema"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Config of a Cluster.
type Config struct {
	// Self is this node's record. Id and Role are required. State 0 means serving,
	// Incarnation 0 a random one, StartedMs 0 now.
	Self *Member
	// Load fills in conns, subscriptions and channels of a figure, once for each
	// figure, from one goroutine; it must not block. nil: all zero.
	Load func(*Figure)
	// Heard is told every figure that comes, of anybody; Gone every incarnation that is
	// no more, and whether it left in order. They must not block, change nothing of
	// what they get, and may be called from several goroutines. nil: nobody asks.
	Heard func(*Figure)
	Gone  func(m *Member, left bool)
	// FigureInterval is the time between two load figures of a router, and of an
	// edge in a cluster of up to 100 members; who has not been heard for three
	// such intervals is silent. It must be equal in all members. 0: the default.
	FigureInterval time.Duration `default:"1s" rule:"not negative"`

	Now      func() time.Time      // nil: time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default is the configuration of a production node; Self is left to the caller.
func Default() Config { return schema.Default[Config]() }

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{schema.Validate(&c)}
	if c.Self == nil {
		return errors.Join(append(errs, errors.New("self: nil: must be set"))...)
	}
	if _, known := gatewayv1.Role_name[int32(c.Self.Role)]; !known || c.Self.Role == gatewayv1.Role_ROLE_UNSPECIFIED {
		errs = append(errs, fmt.Errorf("role: %d: must be edge or router", c.Self.Role))
	}
	self := Identity{ID: c.Self.Id, Region: cmp.Or(c.Self.Region, "none"), Zone: c.Self.Zone}
	return errors.Join(append(errs, schema.Validate(&self))...)
}
