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

// acker acks what the bus has. Its one goroutine is run; committers add to it.
//
// What a flush that failed was for is left to the store: a later flush may have
// found a server that never got it.
type acker struct {
	wake chan struct{} // capacity 1

	mu    sync.Mutex         // guards below; may be taken inside a shard's
	marks map[*channel]point // published up to here since the last flush began
}

func newAcker() acker {
	return acker{wake: make(chan struct{}, 1), marks: make(map[*channel]point)}
}

func (a *acker) add(ch *channel, p point) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.marks[ch] = a.marks[ch].max(p)
}

func (a *acker) signal() { signal(a.wake) }

func (a *acker) take() map[*channel]point {
	a.mu.Lock()
	defer a.mu.Unlock()
	marks := a.marks
	a.marks = make(map[*channel]point)
	return marks
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
			unsure(marks)
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

// unsure leaves what a flush that failed was for to the store.
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
