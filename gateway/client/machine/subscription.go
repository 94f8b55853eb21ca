package machine

import "time"

// Subscription is one channel that a client follows, across connections, until it is
// unsubscribed or the server ends it. It belongs to the machine that it was given to.
type Subscription struct {
	// Owner is the record of whoever made it; the machine does not look at it.
	Owner any

	channel  string
	made     uint64
	known    bool       // pos means something
	pos      Position   // last event read
	at, was  stream     // on the connection that serves; on the one that is left
	untaken  bool       // was has to deliver yet
	past     []Position // where pos was in the last epochs before its own
	last     uint32
	refusals int
	retryAt  time.Time
}

// NewSubscription makes one that begins with the next event, unless Since or Last say
// otherwise.
func NewSubscription(channel string, owner any) *Subscription {
	return &Subscription{channel: channel, Owner: owner}
}

// Since lets it begin after a position.
func (s *Subscription) Since(p Position) { s.known, s.pos = true, p }

// Last lets it begin with the newest n events.
func (s *Subscription) Last(n uint32) { s.last = n }

// Channel that it follows.
func (s *Subscription) Channel() string { return s.channel }

// Position is the last event that came out of the machine, or what Since said. False:
// there is none yet.
func (s *Subscription) Position() (p Position, known bool) { return s.pos, s.known }

// CaughtUp says that the connection that serves has brought all that the channel held when
// it was joined.
func (s *Subscription) CaughtUp() bool {
	st := &s.at
	return st.phase == live && len(st.held) == 0 && st.epoch == s.pos.Epoch &&
		(st.target.Epoch != s.pos.Epoch || st.target.Offset <= s.pos.Offset)
}
