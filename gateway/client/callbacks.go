package client

import (
	"runtime/debug"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// runCallbacks tells the application what waits in the mailbox, one at a time.
func (c *Client) runCallbacks() {
	for {
		a, ok := c.mailbox.pop()
		if !ok {
			return
		}
		c.guard("callback", func() { c.callback(a) })
	}
}

func (c *Client) callback(a machine.Action) {
	switch a := a.(type) {
	case machine.TellState:
		if f := c.settings.onState; f != nil {
			f(a.StateChange)
		}
	case machine.TellMove:
		if f := c.settings.onMove; f != nil {
			f(a.Move)
		}
	case machine.TellSubscribed:
		if !a.Pending {
			c.hand(of(a.Sub), a.Position)
		}
		handle(c, of(a.Sub), a.Subscribed, func(h *Handler) func(Subscribed) { return h.OnSubscribed })
	case machine.TellEvent:
		c.hand(of(a.Sub), a.Position)
		handle(c, of(a.Sub), a.Event, func(h *Handler) func(Event) { return h.OnEvent })
	case machine.TellGap:
		c.hand(of(a.Sub), a.Position)
		handle(c, of(a.Sub), a.Gap, func(h *Handler) func(Gap) { return h.OnGap })
	case machine.TellError:
		handle(c, of(a.Sub), a.Err, func(h *Handler) func(error) { return h.OnError })
	case machine.TellEnd:
		handle(c, of(a.Sub), a.Err, func(h *Handler) func(error) { return h.OnUnsubscribed })
	}
}

func (c *Client) hand(s *Subscription, p Position) {
	if !c.muted(s) {
		s.handed.Store(&p)
	}
}

// muted: the application does not want to hear of it any more.
func (c *Client) muted(s *Subscription) bool { return s.gone.Load() || c.ctx.Err() != nil }

func handle[T any](c *Client, s *Subscription, what T, pick func(*Handler) func(T)) {
	if c.muted(s) {
		return
	}
	if f := pick(s.handler()); f != nil {
		f(what)
	}
}

// guard keeps a panic of the application away from the protocol.
func (c *Client) guard(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			c.settings.log.Warn("the application panicked", "in", what, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}
