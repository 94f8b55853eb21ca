package loadgen

import "time"

// connState:
//
//	away --turn--> dialing --writable--> upgrading --101--> greeting --connected--> up
//	  ^                                                                             |
//	  +------------------------ ended: lost, refused, late, closed <----------------+
type connState uint8

const (
	away      connState = iota // no socket
	dialing                    // connect(2) is under way
	upgrading                  // the request was sent
	greeting                   // the connect frame was sent
	up
)

// conn is one client across its connections; owned by the loop.
type conn struct {
	fd       int // -1: none
	number   int // of the client; its index is number - First
	state    connState
	attempts int   // begun in all: chooses target and source
	failures int   // attempts failed in a row
	heapAt   int   // in loop.timers; -1: no timer
	due      int64 // when the timer fires; loop time

	began    int64 // of the attempt
	upSince  int64 // 0: this connection never was up
	lastRead int64
	pinged   int64 // when the open ping was sent; 0: none is open
	interval int64 // ns between pings
	pong     int64 // ns to wait for a frame after one
	window   time.Duration
	wait     time.Duration // told by the server for the next attempt
	refused  string        // "busy" or an HTTP status: this attempt is a refusal
	code     uint16        // of the close frame

	rest []byte // read, and not yet whole; nil: nothing
	out  []byte // to be written when the socket takes it
	subs []subscription
}

// subscription is where a client stands in a channel. While it is live, the next
// event is offset+1 of epoch.
type subscription struct {
	channel *channel
	epoch   string
	offset  uint64
	seq     uint64 // publisher's number of the last event; 0: none seen
	known   bool   // offset is a position
	live    bool   // the verdict has come on this connection
}

// channel is a name with what its events begin with.
type channel struct {
	name string
	head []byte // `"name","offset":`
}

func (c *conn) find(name string) *subscription {
	for i := range c.subs {
		if c.subs[i].channel.name == name {
			return &c.subs[i]
		}
	}
	return nil
}
