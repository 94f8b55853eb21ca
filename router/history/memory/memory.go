// Package memory keeps history in maps, for tests, and as the plain twin that the other
// stores are compared with. No product binary links it.
//
// Tests of the router call it as any history.Store. It starts no goroutine; one mutex
// guards everything, and no call holds it across I/O since there is none.
//
// Limits: it grows with what is appended until Trim is called; nothing else
// bounds it. A context is looked at when a call begins, not within it: no call
// waits for anything.
//
// Left out on purpose: surviving a restart.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/internal/gate"
)

// Config of a store in memory.
type Config struct {
	// Now is the clock that Trim compares TimeMS with. Default: time.Now.
	Now func() time.Time
}

// Default works as it is.
func Default() Config { return Config{Now: time.Now} }

// Store is a history.Store in maps.
type Store struct {
	// Immutable after New.
	now func() time.Time

	gate gate.Gate

	mu       sync.Mutex // guards all below
	epochs   uint64     // the last epoch given out
	channels map[string]*channel
}

var _ history.Store = (*Store)(nil)

// channel is a row with its events. Guarded by Store.mu.
type channel struct {
	epoch  uint64
	head   uint64
	events []history.Event // a suffix of 1..head without holes
	keys   map[history.Key]keyed
	idle   time.Time // since when nothing is stored and nobody kept it; of no meaning while there are events
}

// keyed is where and when a key was first stored.
type keyed struct {
	offset uint64
	timeMS int64
}

// New makes an empty store.
func New(cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{now: cfg.Now, channels: make(map[string]*channel)}
}

// enter begins a call: the lock is held when it returns nil, until leave.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.gate.Enter() {
		return history.ErrClosed
	}
	s.mu.Lock()
	return nil
}

func (s *Store) leave() {
	s.mu.Unlock()
	s.gate.Leave()
}

// Append implements history.Store. A repeated key refuses the whole batch.
func (s *Store) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	if err := history.CheckRuns(runs); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	defer s.leave()
	winners := s.winnersLocked(runs)
	for i, c := range winners {
		if c != nil {
			if err := c.checkKeys(&runs[i]); err != nil {
				return nil, fmt.Errorf("append history: %w", &history.RefusedError{Err: err})
			}
		}
	}
	outcomes := make([]history.Outcome, len(runs))
	for i, c := range winners {
		outcomes[i] = history.Lost
		if c != nil {
			c.append(&runs[i])
			outcomes[i] = history.Stored
		}
	}
	return outcomes, nil
}

// winnersLocked finds the row of every run that may be stored; nil: lost.
func (s *Store) winnersLocked(runs []history.Run) []*channel {
	winners := make([]*channel, len(runs))
	taken := make(map[string]bool, len(runs))
	for i := range runs {
		c := s.channels[runs[i].Channel]
		if c == nil || c.epoch != runs[i].Epoch || c.head != runs[i].Head || taken[runs[i].Channel] {
			continue
		}
		taken[runs[i].Channel] = true
		winners[i] = c
	}
	return winners
}

func (c *channel) checkKeys(run *history.Run) error {
	fresh := make(map[history.Key]bool)
	for i := range run.Events {
		e := &run.Events[i]
		if e.Key == "" {
			continue
		}
		key := history.Key{Scope: e.Scope, Key: e.Key}
		if _, repeat := c.keys[key]; repeat || fresh[key] {
			return fmt.Errorf("channel %q: key %q of %q is a repeat", run.Channel, e.Key, e.Scope)
		}
		fresh[key] = true
	}
	return nil
}

func (c *channel) append(run *history.Run) {
	for i := range run.Events {
		e := clone(&run.Events[i])
		c.events = append(c.events, e)
		if e.Key != "" {
			if c.keys == nil {
				c.keys = make(map[history.Key]keyed)
			}
			c.keys[history.Key{Scope: e.Scope, Key: e.Key}] = keyed{offset: e.Offset, timeMS: e.TimeMS}
		}
	}
	c.head = run.NewHead()
}

// Heads implements history.Store.
func (s *Store) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("load history heads: %w", err)
	}
	defer s.leave()
	heads := make([]history.Head, len(queries))
	for i, q := range queries {
		c := s.channels[q.Channel]
		if c == nil {
			s.epochs++
			c = &channel{epoch: s.epochs, idle: s.now()}
			s.channels[q.Channel] = c
		}
		heads[i] = history.Head{Channel: q.Channel, Epoch: c.epoch, Offset: c.head, Repeats: c.repeats(q.Keys)}
	}
	return heads, nil
}

func (c *channel) repeats(keys []history.Key) map[history.Key]uint64 {
	var repeats map[history.Key]uint64
	for _, key := range keys {
		if first, ok := c.keys[key]; ok {
			if repeats == nil {
				repeats = make(map[history.Key]uint64)
			}
			repeats[key] = first.offset
		}
	}
	return repeats
}

// Close implements history.Store; what was stored is let go.
func (s *Store) Close() error {
	if s.gate.Close() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.channels = nil
	}
	return nil
}

func clone(e *history.Event) history.Event {
	c := *e
	c.Data = append([]byte{}, e.Data...)
	c.Meta = nil
	if len(e.Meta) > 0 {
		c.Meta = bytes.Clone(e.Meta)
	}
	return c
}
