package loadgen

import "time"

// connState:
//
//	away --turn--> dialing --writable--> upgrading --101--> greeting --connected--> up --moved--> leaving
//	  ^                                                                             |                |
//	  +------------------------ ended: lost, refused, late, closed <----------------+----------------+
type connState uint8

const (
	away      connState = iota // no socket
	dialing                    // connect(2) is under way
	upgrading                  // the request was sent
	greeting                   // the connect frame was sent
	up
	leaving // up, and this client has said close: another conn of its has taken over
)

// conn is one socket of a client; owned by the loop.
type conn struct {
	client  *client
	timer   timer
	fd      int // -1: none
	slot    int32
	state   connState
	first   bool // counts in loop.ramping
	move    bool // was opened because of a hint
	retry   bool // its ticket was refused, and a token sent
	offers  bool // its ticket travels in the connect frame
	target  target
	aimed   bool   // at target: it was told
	left    int    // addresses not tried yet
	address int    // the next of them
	offer   string // ticket at the door
	pass    bool   // it is one

	began    int64  // of the attempt
	upSince  int64  // 0: this connection never was up
	lastRead int64  // loop time
	pinged   int64  // when the open ping was sent; 0: none is open
	interval int64  // ns between pings
	pong     int64  // ns to wait for a frame after one
	node     string // that welcomed it
	hinted   bool   // heard `reconnect`
	refused  string // "busy" or an HTTP status: this attempt is a refusal
	told     told   // by the server about the next attempt
	code     uint16 // of the close frame

	rest []byte // read, and not yet whole; nil: nothing
	out  []byte // to be written when the socket takes it
	subs []stream
}

// told is what a server said about the next attempt.
type told struct {
	wait   time.Duration // 0: nothing
	header bool          // in Retry-After rather than in a frame
	url    string
	pass   string
}

// stream is what one conn has brought of a subscription: all of (start, end] of epoch.
// While it is live, the next event is end+1.
type stream struct {
	live  bool // the verdict has come
	dead  bool // it was refused or ended
	epoch string
	start uint64
	end   uint64
	head  uint64 // of the channel when it was joined: reaching it is being caught up
	seq   uint64 // publisher's number of the last event; 0: none seen
}

// client is one user of the cluster across its connections: at most two, the second
// one while it moves.
type client struct {
	timer   timer // the next attempt
	number  int   // its index is number - First
	turns   int   // attempts begun in all
	address int   // behind the one that was tried last
	attempt uint64
	conns   [2]conn
	cur     *conn // the newest that was welcomed and still is; nil: none

	failures int   // in a row, and connections that did not last
	outage   int64 // since when no conn is welcomed; 0: one is, or none ever was
	first    bool  // the next attempt is the first of an outage
	behind   bool  // welcomed after an outage, and not caught up
	since    int64 // start of the outage that it catches up from
	gone     bool  // will not come back
	window   time.Duration
	next     told // of the last refusal
	ticket   string
	moving   hint
	moves    uint8

	subs []position
}

// hint is a `reconnect` that is being obeyed.
type hint struct {
	open     bool
	deadline int64
	failures int
	url      string
	ticket   string
}

// position is where a client stands in a channel: the last offset handed to the
// application.
type position struct {
	channel *channel
	epoch   string
	offset  uint64
	seq     uint64
	known   bool
}

// channel is a name with what its events begin with.
type channel struct {
	name string
	head []byte // `"name","offset":`
}

func (c *client) find(name string) int {
	for i := range c.subs {
		if c.subs[i].channel.name == name {
			return i
		}
	}
	return -1
}

// other is the client's second socket, open or not.
func (k *conn) other() *conn { return &k.client.conns[1-k.slot] }

// welcomed says that the server sent `connected` and has not closed.
func (k *conn) welcomed() bool { return k.state == up || k.state == leaving }

// opening says that an attempt is under way.
func (k *conn) opening() bool {
	return k.state == dialing || k.state == upgrading || k.state == greeting
}
