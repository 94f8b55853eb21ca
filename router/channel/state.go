package channel

// State is what a channel says of itself to people and tests.
type State struct {
	Known     bool
	Position           // where it stands, if Known
	Floor     uint64   // oldest offset that the store had; 0: not known
	Shown     Position // the highest that was shown
	TailFirst uint64   // offset of the first event in memory; 0: none is
	TailBytes int64
	Pending   int    // publications that wait
	Abandoned int    // of them, those whose callers have given up
	Running   bool   // a run is with the writer
	Unknown   int    // runs of unknown outcome
	Owner     string // state of its ownership: none, awaiting, held, leaving, given
	Moving    bool   // handed over, and not answered yet
}

// State is a picture of the channel.
func (c *Channel) State() State {
	s := State{
		Known: c.known, Position: Position{c.epoch, c.head}, Floor: c.floor, Shown: c.shown, TailBytes: c.tail.bytes, Pending: len(c.pending),
		Running: c.running, Unknown: len(c.unknown), Owner: c.own.state.String(), Moving: c.moving != nil,
	}
	for _, p := range c.pending {
		if p.Stage() == Abandoned {
			s.Abandoned++
		}
	}
	if len(c.tail.events) > 0 {
		s.TailFirst = c.tail.first
	}
	return s
}
