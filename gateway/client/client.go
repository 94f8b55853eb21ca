package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
	"github.com/spillway-io/spillway/proto/wire"
)

// Client is one session with a cluster. All methods may be called from any
// goroutine, callbacks included.
type Client struct {
	// immutable
	settings *settings
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	closed   chan struct{}

	// mu guards the machine and what carries its actions out. Nothing below it blocks:
	// sockets, callbacks and the provider have goroutines of their own.
	mu      sync.Mutex
	m       *machine.Machine
	stats   machine.Stats
	clock   *clock
	conns   map[int]*conn
	timer   *time.Timer
	wakeAt  time.Time
	changed chan struct{} // closed and replaced at each change of state

	mailbox mailbox
	running sync.WaitGroup // goroutines of conns
}

// longestSleep bounds how long a suspended machine is not noticed.
const longestSleep = 15 * time.Second

// New makes a client for a WebSocket URL ("wss://host/v1/ws"). It does no I/O.
// The error says which URL is wrong.
func New(url string, opts ...Option) (*Client, error) {
	s, err := newSettings(url, opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		settings: s, clock: newClock(), conns: map[int]*conn{},
		closed: make(chan struct{}), changed: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	cfg := &machine.Config{URLs: s.urls, HasProvider: s.provider != nil, Name: s.name, Random: s.random}
	if s.joined != nil {
		cfg.Joined = func(channel string) *machine.Subscription {
			return c.newSubscription(channel, func() *Handler { h := s.joined(channel); return &h }).sub
		}
	}
	c.m = machine.New(cfg, &c.stats)
	return c, nil
}

// Start begins to connect and returns at once. It does nothing while the client
// connects or is connected, and begins anew after a 4200 or ErrNoToken.
func (c *Client) Start() error {
	err := ErrClosed
	c.step(func(m *machine.Machine, now time.Time) {
		m.Start(now)
		err = nil
	})
	return err
}

// Connect is Start, and waits until the client is connected (nil), has ended (why)
// or ctx is done (its error; the client goes on trying until Close).
func (c *Client) Connect(ctx context.Context) error {
	if err := c.Start(); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		state, err, changed := c.m.State(), c.m.Err(), c.changed
		c.mu.Unlock()
		switch state {
		case Connected:
			return nil
		case Disconnected:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends the client for good: the connection is closed with 1000, calls fail
// with ErrClosed, no callback but that of the last change of state begins. It
// returns when the sockets are closed, at most 2 s later. Closing twice is no error.
func (c *Client) Close() error {
	c.step(func(m *machine.Machine, _ time.Time) {
		m.Stop(ErrClosed)
		close(c.closed)
		c.cancel()
	})
	c.running.Wait()
	return nil
}

// Wake tells that the network is back, or that the machine or the application woke
// up: a connection has to answer within 5 s, the next attempt comes within 2 s (once
// in 30 s, and never before a time that a server told). Calling it often is harmless.
func (c *Client) Wake() { c.step(func(m *machine.Machine, now time.Time) { m.Nudge(now) }) }

// State of the client now.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.State()
}

// Info of the connection; empty while there is none.
func (c *Client) Info() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.Info()
}

// Subscribe follows a channel, now and after every reconnect, before or after
// Connect. It returns at once; the handler, and Wait, hear the answer. Errors: a
// channel name that cannot be, ErrSubscribed, ErrClosed.
func (c *Client) Subscribe(channel string, h Handler, opts ...SubscribeOption) (*Subscription, error) {
	if err := wire.CheckChannel(channel); err != nil {
		return nil, err
	}
	s := c.newSubscription(channel, func() *Handler { return &h })
	for _, o := range opts {
		o(s)
	}
	if from, known := s.sub.Position(); known {
		if from.Epoch == "" || from.Offset > wire.MaxOffset {
			return nil, fmt.Errorf("since %q:%d: not a position", from.Epoch, from.Offset)
		}
		s.handed.Store(&from)
	}
	err := ErrClosed
	c.step(func(m *machine.Machine, now time.Time) { err = m.Subscribe(now, s.sub) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Subscription of a channel, nil if there is none.
func (c *Client) Subscription(channel string) *Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.m.Subscription(channel); s != nil {
		return of(s)
	}
	return nil
}

// step lets the machine take one event in, and carries its actions out. After Close
// it does nothing.
func (c *Client) step(event func(*machine.Machine, time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closed:
		return
	default:
	}
	event(c.m, c.clock.now())
	for _, a := range c.m.Take() {
		c.carryOut(a)
	}
	c.sleep()
}

func (c *Client) carryOut(a machine.Action) {
	switch a := a.(type) {
	case machine.OpenLink:
		c.open(a)
	case machine.Send:
		if k := c.conns[a.Link]; k != nil {
			k.write(a.Text)
		}
	case machine.DropLink:
		if k := c.conns[a.Link]; k != nil {
			delete(c.conns, a.Link)
			k.drop(a.Code)
		}
	case machine.AskToken:
		// Owns nothing; ended by its deadline or Close, if the provider heeds its context.
		go c.provide()
	case machine.FinishCall:
		close(a.Call.Done)
	default:
		c.tell(a)
	}
}

// tell queues a callback, and what waits for the same is woken at once.
func (c *Client) tell(a machine.Action) {
	switch a := a.(type) {
	case machine.TellState:
		close(c.changed)
		c.changed = make(chan struct{})
		c.settings.log.Debug("client state", "from", a.From, "to", a.To, "err", a.Err)
	case machine.TellMove:
		c.settings.log.Debug("client move", "from", a.From, "to", a.To, "reason", a.Reason, "took", a.Took, "err", a.Err)
	case machine.TellSubscribed:
		if !a.Pending {
			of(a.Sub).answer(nil)
		}
	case machine.TellEnd:
		of(a.Sub).answer(a.Err)
	}
	if c.mailbox.push(a) {
		// Owns the callbacks; ends when there are none; nobody waits for it, since
		// Close may be called by a callback.
		go c.runCallbacks()
	}
}

// sleep sets the timer to when the machine has something to do.
func (c *Client) sleep() {
	at := c.m.Wake()
	if at.Equal(c.wakeAt) {
		return
	}
	c.wakeAt = at
	if c.timer != nil {
		c.timer.Stop()
	}
	if at.IsZero() {
		return
	}
	wait := min(max(at.Sub(c.clock.now()), 0), longestSleep)
	c.timer = time.AfterFunc(wait, c.tick)
}

func (c *Client) tick() {
	c.step(func(m *machine.Machine, now time.Time) {
		c.wakeAt = time.Time{} // the timer is spent
		paused := false        // for one it is for all: they wait for the same mailbox
		for _, k := range c.conns {
			paused = paused || k.paused.Load()
		}
		m.Tick(now, paused)
	})
}

// tokenTime is what the provider has for an answer.
const tokenTime = 30 * time.Second

func (c *Client) provide() {
	ctx, cancel := context.WithTimeout(c.ctx, tokenTime)
	defer cancel()
	token, err := "", errors.New("the token provider panicked")
	c.guard("token provider", func() { token, err = c.settings.provider(ctx) })
	c.step(func(m *machine.Machine, now time.Time) { m.Token(now, token, err) })
}

// Stats of the client so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
