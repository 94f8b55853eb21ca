package gateway

import "time"

// clock is the edge's coarse time, four bytes where a time.Time takes 24.
type clock struct{ born time.Time }

// seconds since birth, from 1: second 0 means "none".
func (c clock) seconds(now time.Time) uint32 { return uint32(now.Sub(c.born) / time.Second) }

// milliseconds is finer; it wraps after 49 days, so only differences mean something.
func (c clock) milliseconds(now time.Time) uint32 { return uint32(now.Sub(c.born).Milliseconds()) }

// at is the moment of a second, a second coarse.
func (c clock) at(second uint32) time.Time { return c.born.Add(time.Duration(second) * time.Second) }
