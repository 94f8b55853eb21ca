package machine

import (
	"cmp"
	"slices"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Config is what the machines of a program have in common; it does not change.
type Config struct {
	URLs        []string // where a cluster is reached; the first is the home of a new machine
	HasProvider bool     // AskToken can be carried out; else the client is anonymous
	Name        string   // tells servers who connects
	// Random is the source of all jitter: uniform in [0, d).
	Random func(d time.Duration) time.Duration
	// Joined gives a subscription for a channel that the token joins and nobody asked
	// for; it, or what it returns, may be nil.
	Joined func(channel string) *Subscription
	// Foreign, if set, makes it a client of another make.
	Foreign *Foreign
}

// Foreign is the behaviour of a client that is none of our SDKs, in the places where the
// machine decides what an SDK of ours does. It knows nothing of tickets, attempts,
// `reconnect`, close 4200 and the waits that servers tell; it brings a new token to each
// connection.
type Foreign struct {
	// Pause is the time before the attempt after so many failures in a row; a connection
	// that lasted begins the count anew.
	Pause       func(failures int) time.Duration
	AttemptTime time.Duration // from opening to connected; it does not grow
}

// Machine is the protocol of one client. What happened and when goes in by its methods;
// what is to be done comes out of Take.
type Machine struct {
	cfg   *Config
	stats *Stats

	state State
	err   error // why it is DISCONNECTED
	out   []Action

	link, ahead, old *link // ahead and old: not both; neither without link
	links            int   // opened so far; also the `attempt` of the newest
	lastID           uint32

	session string
	ticket  string // stands for the identity; in memory only, never logged

	// The next attempt, while link is nil.
	next       plan
	failures   int
	nudgedAt   time.Time // the last time that nudge brought it forward
	home       int       // of urls
	silent     int       // failures without any answer of Spillway, since silentAt
	silentAt   time.Time
	stableTime time.Duration // so long up, and failures are forgotten

	token     string
	needToken bool // before the next attempt
	asking    bool // at most one at a time

	subs      map[string]*Subscription
	subsMade  uint64
	untaken   int     // subscriptions that old has to deliver yet
	heldBytes int     // in the streams of all subscriptions
	waiting   []*Call // not sent yet, in order
}

// plan is an attempt to come.
type plan struct {
	at   time.Time
	told bool   // by a server; nothing brings it forward
	url  string // a server's hint, for this attempt only
	pass string // a ticket for the slot told, offered at the door and nowhere else
}

const (
	attemptTime    = 15 * time.Second // from opening to connected, doubled by each failure
	attemptTimeMax = 60 * time.Second
	backoffBase    = 500 * time.Millisecond
	backoffCap     = 30 * time.Second
	capFailures    = 6 // backoffBase << 6 > backoffCap
	stableUp       = 5 * time.Second
	stableUpSlow   = 60 * time.Second // after 4005
	serverWaitMax  = 10 * time.Minute
	windowMax      = 10 * time.Second
	leaveFailures  = 3 // a URL is left after so many, and
	leaveTime      = 10 * time.Second
	maxCalls       = 10_000
)

// Action is something for the caller to carry out.
type Action interface{ act() }

type (
	// OpenLink: dial, and report Opened or Refused, then frames, then Lost.
	OpenLink struct {
		Link   int
		URL    string
		Hinted bool          // a server named the URL; it is one edge, not the cluster
		Move   bool          // another connection serves meanwhile
		Ticket string        // to offer at the door; may be empty
		Pass   bool          // the ticket is for one slot, not the session's
		Time   time.Duration // the attempt has that long, and the machine ends it then
	}
	// Send one frame. It never comes before Opened.
	Send struct {
		Link int
		Text []byte
	}
	// DropLink: close with this code; nothing of it is reported any more.
	DropLink struct {
		Link int
		Code wire.CloseCode
	}
	// AskToken: call the provider and report Token.
	AskToken struct{}
	// FinishCall: the call has its reply or error.
	FinishCall struct{ Call *Call }

	// TellState, TellMove and the rest are what the application may hear of.
	TellState      struct{ StateChange }
	TellMove       struct{ Move }
	TellSubscribed struct {
		Sub *Subscription
		Subscribed
	}
	TellEvent struct {
		Sub *Subscription
		Event
	}
	TellGap struct {
		Sub *Subscription
		Gap
	}
	TellError struct {
		Sub *Subscription
		Err error
	}
	TellEnd struct {
		Sub *Subscription
		Err error
	}
)

func (OpenLink) act()       {}
func (Send) act()           {}
func (DropLink) act()       {}
func (AskToken) act()       {}
func (FinishCall) act()     {}
func (TellState) act()      {}
func (TellMove) act()       {}
func (TellSubscribed) act() {}
func (TellEvent) act()      {}
func (TellGap) act()        {}
func (TellError) act()      {}
func (TellEnd) act()        {}

// New makes a machine that waits for Start. It counts in stats, which many machines of one
// goroutine may share.
func New(cfg *Config, stats *Stats) *Machine {
	return &Machine{cfg: cfg, stats: stats, stableTime: stableUp}
}

// State of the client.
func (m *Machine) State() State { return m.state }

// Err is why it is DISCONNECTED.
func (m *Machine) Err() error { return m.err }

// Info of the connection; empty while there is none.
func (m *Machine) Info() Info {
	if l := m.link; l != nil && l.phase == up {
		return Info{m.session, l.node, l.region}
	}
	return Info{}
}

// Subscription of a channel, nil if there is none.
func (m *Machine) Subscription(channel string) *Subscription { return m.subs[channel] }

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

// Take hands out the actions since the last take, in order.
func (m *Machine) Take() []Action {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) setState(to State, err error) {
	from := m.state
	m.state = to
	if from == Connected && to == Reconnecting {
		m.stats.Interruptions++
	}
	if from != to || err != nil {
		m.do(TellState{StateChange{from, to, err}})
	}
}

// Start begins to connect; nothing if it is under way or done.
func (m *Machine) Start(now time.Time) {
	if m.state != Disconnected {
		return
	}
	m.err = nil
	m.failures, m.silent, m.stableTime = 0, 0, stableUp
	m.needToken = m.cfg.HasProvider && m.token == ""
	m.next = plan{at: now}
	m.setState(Connecting, nil)
	m.Tick(now, false)
}

// Stop ends everything: Close (err is ErrClosed), close 4200, no token.
func (m *Machine) Stop(err error) {
	for _, l := range []*link{m.ahead, m.old, m.link} {
		if l == nil {
			continue
		}
		if !l.gone {
			m.do(DropLink{l.n, wire.CloseNormal})
		}
		m.cutOff(l)
	}
	m.link, m.ahead, m.old = nil, nil, nil
	m.offStreams()
	m.ticket, m.session = "", ""
	for _, c := range m.waiting {
		m.finish(c, nil, err)
	}
	m.waiting = nil
	m.err = err
	if m.state != Disconnected {
		m.setState(Disconnected, err)
	}
}

// Tick does what is due. paused: frames have come and wait for the application,
// so silence says nothing about the server.
func (m *Machine) Tick(now time.Time, paused bool) {
	if m.state == Disconnected {
		return
	}
	l := m.link
	if l == nil {
		m.attempt(now)
		return
	}
	if l.phase != up {
		m.late(now, l)
		return
	}
	m.heartbeat(now, l, paused)
	if m.old != nil {
		m.heartbeat(now, m.old, paused)
	}
	if m.ahead != nil {
		m.late(now, m.ahead)
	}
	if m.link != l {
		return
	}
	m.refresh(now)
	m.askAgain(now)
	m.tryEndMove(now)
	m.moveOn(now)
}

// late ends an attempt that took too long.
func (m *Machine) late(now time.Time, l *link) {
	if !now.Before(l.deadline) {
		m.drop(now, l, loss{own: true, err: errAttemptTime})
	}
}

// Wake is when tick has something to do; zero: never.
func (m *Machine) Wake() time.Time {
	l := m.link
	switch {
	case m.state == Disconnected, l == nil && m.needToken && m.asking:
		return time.Time{}
	case l == nil:
		return m.next.at
	case l.phase != up:
		return l.deadline
	}
	at := l.nextPing
	sooner := func(list ...time.Time) {
		for _, t := range list {
			if !t.IsZero() && t.Before(at) {
				at = t
			}
		}
	}
	sooner(l.pongBy, l.refreshAt)
	switch {
	case m.ahead != nil:
		sooner(m.ahead.deadline)
	case m.old != nil:
		sooner(l.askAt, m.old.nextPing, m.old.pongBy, m.old.until)
	default:
		sooner(l.askAt, m.moveAt())
	}
	return at
}

// find gives the connection of this number, if it still matters.
func (m *Machine) find(n int) *link {
	for _, l := range []*link{m.link, m.ahead, m.old} {
		if l != nil && l.n == n {
			return l
		}
	}
	return nil
}

// command sends a frame and remembers what for.
func (m *Machine) command(l *link, c *command, f *clientv1.ClientFrame) uint32 {
	m.lastID++
	if m.lastID == 0 {
		m.lastID = 1
	}
	f.Id = m.lastID
	if l.open == nil {
		l.open = map[uint32]*command{}
	}
	l.open[f.Id] = c
	m.do(Send{l.n, wire.AppendClient(nil, f)})
	return f.Id
}

// inOrder gives the subscriptions as the application made them.
func (m *Machine) inOrder() []*Subscription {
	subs := make([]*Subscription, 0, len(m.subs))
	for _, s := range m.subs {
		subs = append(subs, s)
	}
	slices.SortFunc(subs, func(a, b *Subscription) int { return cmp.Compare(a.made, b.made) })
	return subs
}
