package operations

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config of a Service. Start from Default.
type Config struct {
	ID string // member id of this router; needed

	// What the check before an evacuation assumes of edges; equal to their settings.
	CriticalReserve int // room of each edge that only critical clients get. Default 100
	ForeignPercent  int // of an edge's room, for clients of other regions. Default 80

	// HooksBefore is how long the hooks that are called before an evacuation may take
	// together, within the deadline of the call that starts it. Default 10s
	HooksBefore time.Duration

	Now      func() time.Time      // wall clock. Default time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default works once ID is set.
func Default() Config {
	return Config{CriticalReserve: 100, ForeignPercent: 80, HooksBefore: 10 * time.Second, Now: time.Now}
}

// Validate reports all problems at once.
func (c *Config) Validate() error {
	var problems []error
	if c.CriticalReserve < 0 {
		problems = append(problems, fmt.Errorf("critical_reserve: %d: must not be negative", c.CriticalReserve))
	}
	if c.ForeignPercent < 0 || c.ForeignPercent > 100 {
		problems = append(problems, fmt.Errorf("foreign_percent: %d: must be between 0 and 100", c.ForeignPercent))
	}
	return errors.Join(problems...)
}
