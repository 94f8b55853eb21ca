package feed

import (
	"context"
	"fmt"
)

// MaxSinks is the most event loops that one table can serve.
const MaxSinks = 128

// Table carries the channels of one edge for its event loops.
type Table struct {
	// immutable after New
	cfg   Config
	sinks []Sink
}

// New makes a table; Run makes it live. Pulls may come before Run.
func New(cfg Config, bus Bus, asker Asker, sinks []Sink) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("channel table: %w", err)
	}
	if len(sinks) > MaxSinks {
		return nil, fmt.Errorf("channel table: %d sinks, at most %d are possible", len(sinks), MaxSinks)
	}
	return &Table{cfg: cfg, sinks: sinks}, nil
}

// Run serves until ctx ends, then drops every interest and returns nil.
func (t *Table) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Pull registers the interest of p.Sink in p.Channel and asks for what p says.
// A Piece follows unless Cancel or Leave comes first.
func (t *Table) Pull(p Pull) {}

// Cancel says that nobody waits for the Piece of a Pull any more. One may still
// come that was under way. The sink's interest stays.
func (t *Table) Cancel(sink int, conn, sub uint64, channel string) {}

// Leave says that the last subscriber of a sink has gone from a channel: its
// pulls there are forgotten, and so is the channel if no other sink has it, after
// Config.Linger.
func (t *Table) Leave(sink int, channel string) {}
