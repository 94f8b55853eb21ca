package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Subscription is one channel that a client follows, across connections, until
// Unsubscribe or until the server ends it.
type Subscription struct {
	// immutable
	client  *Client
	channel string
	handler func() *Handler // run by the goroutine of callbacks only

	// owned by the machine, under client.mu
	made    uint64
	known   bool       // pos means something
	pos     Position   // last event read; handed <= pos
	at, was stream     // on the connection that serves; on the one that is left
	untaken bool       // was has to deliver yet
	past    []Position // where pos was in the last epochs before its own
	last    uint32
	refused int
	retryAt time.Time

	// under client.mu
	settled bool
	err     error // why it ended

	ready  chan struct{}            // closed when settled: the first verdict, or the end
	handed atomic.Pointer[Position] // nil: none
	gone   atomic.Bool              // the application has ended it
}

func (c *Client) newSubscription(channel string, handler func() *Handler) *Subscription {
	return &Subscription{client: c, channel: channel, handler: sync.OnceValue(handler), ready: make(chan struct{})}
}

// Channel that it follows.
func (s *Subscription) Channel() string { return s.channel }

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
	s.client.step(func(m *machine, _ time.Time) {
		m.unsubscribe(s)
		s.settle(ErrUnsubscribed)
	})
}

// settle answers Wait. client.mu is held.
func (s *Subscription) settle(err error) {
	if s.err == nil {
		s.err = err
	}
	if !s.settled {
		s.settled = true
		close(s.ready)
	}
}
