package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// Subscription is one channel that a client follows, across connections, until
// Unsubscribe or until the server ends it.
type Subscription struct {
	// immutable
	client  *Client
	handler func() *Handler // run by the goroutine of callbacks only

	// under client.mu
	sub      *machine.Subscription
	answered bool
	err      error // why it ended

	ready  chan struct{}            // closed when answered: the first verdict, or the end
	handed atomic.Pointer[Position] // nil: none
	gone   atomic.Bool              // the application has ended it
}

func (c *Client) newSubscription(channel string, handler func() *Handler) *Subscription {
	s := &Subscription{client: c, handler: sync.OnceValue(handler), ready: make(chan struct{})}
	s.sub = machine.NewSubscription(channel, s)
	return s
}

// of finds the subscription of the application behind one of the machine.
func of(s *machine.Subscription) *Subscription { return s.Owner.(*Subscription) }

// Channel that it follows.
func (s *Subscription) Channel() string { return s.sub.Channel() }

// Position is the last event that was handed to the application (inside OnEvent: the
// event at hand), or what Since said. False: there is none yet.
func (s *Subscription) Position() (Position, bool) {
	if p := s.handed.Load(); p != nil {
		return *p, true
	}
	return Position{}, false
}

// Wait returns when the server has answered: nil if the subscription stands (not
// while pending), else why it does not.
func (s *Subscription) Wait(ctx context.Context) error {
	select {
	case <-s.ready:
	case <-s.client.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	return s.err
}

// Unsubscribe ends it; no callback begins after it has returned (one may be
// running). Doing it twice is no error.
func (s *Subscription) Unsubscribe() {
	s.gone.Store(true)
	s.client.step(func(m *machine.Machine, _ time.Time) {
		m.Unsubscribe(s.sub)
		s.answer(ErrUnsubscribed)
	})
}

// answer ends Wait. client.mu is held.
func (s *Subscription) answer(err error) {
	if s.err == nil {
		s.err = err
	}
	if !s.answered {
		s.answered = true
		close(s.ready)
	}
}
