package presence

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// maxLabelBytes bounds ids, regions and zones: they stand in every figure.
const maxLabelBytes = 255

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
	// such intervals is silent. It must be equal in all members. 0: one second.
	FigureInterval time.Duration

	Now      func() time.Time      // nil: time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default is the configuration of a production node; Self is left to the caller.
func Default() Config { return Config{FigureInterval: time.Second, Now: time.Now} }

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if c.FigureInterval < 0 {
		errs = append(errs, fmt.Errorf("figure_interval: %v: must not be negative", c.FigureInterval))
	}
	if c.Self == nil {
		return errors.Join(append(errs, errors.New("self: nil: must be set"))...)
	}
	if c.Self.Id == "" {
		errs = append(errs, errors.New(`id: "": must not be empty`))
	}
	if strings.Contains(c.Self.Id, "/") {
		errs = append(errs, fmt.Errorf("id: %q: must not contain a slash", c.Self.Id))
	}
	if _, known := gatewayv1.Role_name[int32(c.Self.Role)]; !known || c.Self.Role == gatewayv1.Role_ROLE_UNSPECIFIED {
		errs = append(errs, fmt.Errorf("role: %d: must be edge or router", c.Self.Role))
	}
	for _, f := range []struct{ field, value string }{{"id", c.Self.Id}, {"region", c.Self.Region}, {"zone", c.Self.Zone}} {
		if len(f.value) > maxLabelBytes {
			errs = append(errs, fmt.Errorf("%s: %d bytes: at most %d", f.field, len(f.value), maxLabelBytes))
		}
		if !utf8.ValidString(f.value) || strings.ContainsFunc(f.value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			errs = append(errs, fmt.Errorf("%s: %q: must be UTF-8 without control characters", f.field, f.value))
		}
	}
	return errors.Join(errs...)
}
