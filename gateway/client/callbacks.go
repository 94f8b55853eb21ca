package client

import "runtime/debug"

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

func (c *Client) callback(a action) {
	switch a := a.(type) {
	case tellState:
		if f := c.settings.onState; f != nil {
			f(a.StateChange)
		}
	case tellMove:
		if f := c.settings.onMove; f != nil {
			f(a.Move)
		}
	case tellSubscribed:
		if !a.Pending {
			c.hand(a.sub, a.Position)
		}
		handle(c, a.sub, a.Subscribed, func(h *Handler) func(Subscribed) { return h.OnSubscribed })
	case tellEvent:
		c.hand(a.sub, a.Position)
		handle(c, a.sub, a.Event, func(h *Handler) func(Event) { return h.OnEvent })
	case tellGap:
		c.hand(a.sub, a.Position)
		handle(c, a.sub, a.Gap, func(h *Handler) func(Gap) { return h.OnGap })
	case tellError:
		handle(c, a.sub, a.err, func(h *Handler) func(error) { return h.OnError })
	case tellEnd:
		handle(c, a.sub, a.err, func(h *Handler) func(error) { return h.OnUnsubscribed })
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
