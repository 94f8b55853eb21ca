package operations

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/proto/schema"
)

// Config of a Service. Start from Default.
type Config struct {
	ID string // member id of this router; needed

	// What the check before an evacuation assumes of edges; equal to their settings.
	CriticalReserve int `default:"100" rule:"not negative"`     // room of each edge that only critical clients get
	ForeignPercent  int `default:"80" rule:"between 0 and 100"` // of an edge's room, for clients of other regions

	// HooksBefore is how long the hooks that are called before an evacuation may take
	// together, within the deadline of the call that starts it.
	HooksBefore time.Duration `default:"10s" rule:"above 0s"`

	Now      func() time.Time      // wall clock
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default works once ID is set.
func Default() Config {
	c := schema.Default[Config]()
	c.Now = time.Now
	return c
}

// Validate reports all problems at once.
func (c *Config) Validate() error { return schema.Validate(c) }
