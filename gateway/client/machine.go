package client

import (
	"cmp"
	"slices"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// machine is the protocol of one client: what happened and when goes in by its
// methods, what is to be done comes out of take. It has no socket, clock,
// goroutine or lock; its caller serialises.
//
// It has up to two connections. link serves: commands go there. While it moves,
// either ahead is an attempt beside it, or old is the connection that it left and
// that still delivers (move.go):
//
//	link ──reconnect──▶ link + ahead ──connected──▶ old + link ──all taken over──▶ link
//	                      │  ▲                        │
//	                      └──┘ failed: again later    └─ link is lost: old serves again
type machine struct {
	// immutable
	urls        []string
	hasProvider bool
	name        string
	random      func(time.Duration) time.Duration // uniform in [0, d)
	joined      func(channel string) *Subscription

	state State
	err   error // why it is DISCONNECTED
	out   []action
	stats Stats

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
	waiting   []*call // not sent yet, in order
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

// action is something for the client to carry out.
type action interface{ act() }

type (
	// openLink: dial, and report opened or refused, then frames, then lost.
	openLink struct {
		link     int
		url      string
		ticket   string        // to offer at the door; may be empty
		deadline time.Duration // from now
	}
	// send one frame. It never comes before opened.
	send struct {
		link int
		text []byte
	}
	// dropLink: close with this code; nothing of it is reported any more.
	dropLink struct {
		link int
		code wire.CloseCode
	}
	// askToken: call the provider and report token.
	askToken struct{}
	// finishCall: the call has its reply or error.
	finishCall struct{ call *call }

	tellState      struct{ StateChange }
	tellMove       struct{ Move }
	tellSubscribed struct {
		sub *Subscription
		Subscribed
	}
	tellEvent struct {
		sub *Subscription
		Event
	}
	tellGap struct {
		sub *Subscription
		Gap
	}
	tellError struct {
		sub *Subscription
		err error
	}
	tellEnd struct {
		sub *Subscription
		err error
	}
)

func (openLink) act()       {}
func (send) act()           {}
func (dropLink) act()       {}
func (askToken) act()       {}
func (finishCall) act()     {}
func (tellState) act()      {}
func (tellMove) act()       {}
func (tellSubscribed) act() {}
func (tellEvent) act()      {}
func (tellGap) act()        {}
func (tellError) act()      {}
func (tellEnd) act()        {}

func newMachine(urls []string) *machine {
	return &machine{urls: urls, stableTime: stableUp, subs: map[string]*Subscription{}}
}

func (m *machine) do(a action) { m.out = append(m.out, a) }

// take hands out the actions since the last take, in order.
func (m *machine) take() []action {
	out := m.out
	m.out = nil
	return out
}

func (m *machine) setState(to State, err error) {
	from := m.state
	m.state = to
	if from == Connected && to == Reconnecting {
		m.stats.Interruptions++
	}
	if from != to || err != nil {
		m.do(tellState{StateChange{from, to, err}})
	}
}

// start is Connect: nothing if it is under way or done.
func (m *machine) start(now time.Time) {
	if m.state != Disconnected {
		return
	}
	m.err = nil
	m.failures, m.silent, m.stableTime = 0, 0, stableUp
	m.needToken = m.hasProvider && m.token == ""
	m.next = plan{at: now}
	m.setState(Connecting, nil)
	m.tick(now, false)
}

// stop ends everything: Close (err is ErrClosed), close 4200, no token.
func (m *machine) stop(err error) {
	for _, l := range []*link{m.ahead, m.old, m.link} {
		if l == nil {
			continue
		}
		if !l.gone {
			m.do(dropLink{l.n, wire.CloseNormal})
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

// tick does what is due. paused: frames have come and wait for the application,
// so silence says nothing about the server.
func (m *machine) tick(now time.Time, paused bool) {
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
	m.handOver(now)
	m.moveOn(now)
}

// late ends an attempt that took too long.
func (m *machine) late(now time.Time, l *link) {
	if !now.Before(l.deadline) {
		m.drop(now, l, loss{own: true, err: errAttemptTime})
	}
}

// wake is when tick has something to do; zero: never.
func (m *machine) wake() time.Time {
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
func (m *machine) find(n int) *link {
	for _, l := range []*link{m.link, m.ahead, m.old} {
		if l != nil && l.n == n {
			return l
		}
	}
	return nil
}

// command sends a frame and remembers what for.
func (m *machine) command(l *link, c *command, f *clientv1.ClientFrame) uint32 {
	m.lastID++
	if m.lastID == 0 {
		m.lastID = 1
	}
	f.Id = m.lastID
	if l.open == nil {
		l.open = map[uint32]*command{}
	}
	l.open[f.Id] = c
	m.do(send{l.n, wire.AppendClient(nil, f)})
	return f.Id
}

// inOrder gives the subscriptions as the application made them.
func (m *machine) inOrder() []*Subscription {
	subs := make([]*Subscription, 0, len(m.subs))
	for _, s := range m.subs {
		subs = append(subs, s)
	}
	slices.SortFunc(subs, func(a, b *Subscription) int { return cmp.Compare(a.made, b.made) })
	return subs
}
