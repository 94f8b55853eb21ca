package table

import "github.com/spillway-io/spillway/router/channel"

// What stands in this file looks into a table from outside, for people and for tests of
// whole routers. Nothing that serves calls it.

// Waiting is how many publications are queued or in flight, and their bytes.
func (t *Table) Waiting() (events, bytes int64) { return t.events.Load(), t.bytes.Load() }

// With calls f for a channel that is here, on its shard; false: it is not here.
func (t *Table) With(name string, f func(*channel.Channel, *channel.Step)) (here bool) {
	s := t.shardOf(name)
	t.do(s, func() {
		if e := s.channels[name]; e != nil {
			here = true
			s.on(e, func(e *entry) { f(&e.Channel, &s.step) })
		}
	})
	return here
}

// Let lets a channel go, as if for room; false: it is not here, or something waits for it.
func (t *Table) Let(name string) (gone bool) {
	s := t.shardOf(name)
	t.do(s, func() {
		if e := s.channels[name]; e != nil && !e.busy() {
			s.drop(e)
			gone = true
		}
	})
	return gone
}

// State is a picture of a channel; false: it is not here.
func (t *Table) State(name string) (state channel.State, here bool) {
	here = t.With(name, func(c *channel.Channel, _ *channel.Step) { state = c.State() })
	return state, here
}
