package retention

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	noteBatch = 1_000       // channels of one call
	notePace  = time.Second // between two calls
	noteRest  = time.Minute // after a call that failed
	noteQueue = 100_000     // channels that wait; past it they are noted when they are asked for again

	// UsesNoted is how often a channel that is asked for is noted within ForgetAfter.
	UsesNoted = 12
)

// notes is the channels of which the store is to be told that they are in use: edges ask
// for each channel that they carry twice a minute, and without a row its next event would
// begin a new epoch, which tells all its readers that they may have missed something.
// Only channels without events are told; of the others the row stays anyway.
type notes struct {
	withEvents func([]string) []string

	mu  sync.Mutex // guards below
	due []string
}

// InUse notes that somebody asks for a channel; false: there is no room.
func (r *Retention) InUse(channel string) bool {
	n := &r.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.due) >= noteQueue {
		return false
	}
	n.due = append(n.due, channel)
	return true
}

// take returns channels that have waited, without those whose events have come to
// light meanwhile.
func (n *notes) take() []string {
	n.mu.Lock()
	count := min(noteBatch, len(n.due))
	some := slices.Clone(n.due[:count])
	if n.due = n.due[count:]; len(n.due) == 0 {
		n.due = nil
	}
	n.mu.Unlock()
	if len(some) == 0 {
		return nil
	}
	slices.Sort(some)
	some = slices.Compact(some)
	stays := make(map[string]bool)
	for _, name := range n.withEvents(some) {
		stays[name] = true
	}
	return slices.DeleteFunc(some, func(name string) bool { return stays[name] })
}

// tells tells the store, until ctx ends. A call that fails is made again: those
// channels are not noted a second time for long.
func (r *Retention) tells(ctx context.Context) error {
	var channels []string
	failed := false
	for wait := notePace; pause(ctx, wait); {
		if len(channels) == 0 {
			channels = r.notes.take()
		}
		wait = notePace
		if len(channels) == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
		err := r.store.Keep(call, channels)
		cancel()
		switch {
		case err == nil:
			channels, failed = nil, false
		case ctx.Err() == nil:
			wait = noteRest
			if !failed {
				r.log.Warn("the store cannot be told which channels are in use; trying again", "error", err)
			}
			failed = true
		}
	}
	return nil
}
