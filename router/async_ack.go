package router

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Flusher is a Bus that can say that the server has what was published.
// Asynchronous namespaces need one.
type Flusher interface {
	// Flush waits until the bus server has answered for all that was published
	// before. An error, also that something was dropped, says nothing of it.
	Flush(ctx context.Context) error
}

var errNoFlush = errors.New("the bus cannot be flushed")

// flushTimeout bounds one flush. Publishes wait for the store meanwhile.
const flushTimeout = time.Second

// acker acks what the bus has. Its one goroutine is runAcks; committers add to it what
// they have put on the bus, never before: the flush that acks it has to come after.
//
// What was put on the bus before a flush failed is left to the store, also if that flush
// was for others: what it lost nobody knows, and a later one may find a server that
// never got it.
type acker struct {
	wake chan struct{} // capacity 1

	mu       sync.Mutex         // guards below
	marks    map[*channel]point // put on the bus up to here since the last flush began
	failures uint64             // flushes that failed
}

func newAcker() acker {
	return acker{wake: make(chan struct{}, 1), marks: make(map[*channel]point)}
}

// failed counts the flushes that did. Who publishes reads it before.
func (a *acker) failed() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failures
}

// add what was put on the bus since there were so many failures; false: one came
// between, only the store acks.
func (a *acker) add(ch *channel, p point, failures uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if failures != a.failures {
		return false
	}
	a.marks[ch] = a.marks[ch].max(p)
	return true
}

func (a *acker) signal() { signal(a.wake) }

func (a *acker) take() map[*channel]point {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeLocked()
}

func (a *acker) takeLocked() map[*channel]point {
	marks := a.marks
	a.marks = make(map[*channel]point)
	return marks
}

// fail takes note of a flush that failed; it returns what was added during it.
func (a *acker) fail() map[*channel]point {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures++
	return a.takeLocked()
}

// runAcks flushes the bus and acks, until ctx ends.
func (s *sequencer) runAcks(ctx context.Context) error {
	flusher, ok := s.fan.bus.(Flusher)
	for {
		select {
		case <-s.behind.acker.wake:
		case <-ctx.Done():
			return nil
		}
		marks := s.behind.acker.take()
		if len(marks) == 0 {
			continue
		}
		err := errNoFlush
		if ok {
			flush, cancel := context.WithTimeout(ctx, flushTimeout)
			err = flusher.Flush(flush)
			cancel()
		}
		if err != nil {
			s.metrics.flushFailures.Inc()
			s.log.Debug("the bus did not answer a flush; publishes wait for the store", "error", err)
			late := s.behind.acker.fail()
			unsure(marks)
			unsure(late)
			continue
		}
		for ch, p := range marks {
			ch.shard.mu.Lock()
			var acks []ack
			if ch.async != nil {
				acks = ch.async.takeAcks(p.epoch, ch.async.unsure, p.offset)
				s.hand.idleLocked(ch)
			}
			ch.shard.mu.Unlock()
			s.acked(acks, Async)
		}
	}
}

// unsure leaves to the store what a flush that failed may have lost.
func unsure(marks map[*channel]point) {
	for ch, p := range marks {
		ch.shard.mu.Lock()
		if a := ch.async; a != nil {
			if ch.epoch != p.epoch {
				p.offset = ch.head // numbered anew meanwhile
			}
			a.unsure = max(a.unsure, p.offset)
		}
		ch.shard.mu.Unlock()
	}
}
