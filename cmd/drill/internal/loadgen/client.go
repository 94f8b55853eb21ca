package loadgen

import (
	"bytes"
	"errors"
	"strconv"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/client/machine"
)

// home stands for the name that all targets are addresses of; nobody resolves it.
const home = "ws://cluster.test/v1/ws"

const tokenLife = time.Hour

// never is past the end of any drill.
const never = 1000 * time.Hour

var errStaysAway = errors.New("clients without a policy stay away")

// client is one user of the cluster: the machine of the SDK, and what is counted of it.
// Owned by the loop.
type client struct {
	timer   timer // when the machine wants to be woken
	number  int   // its index is number - First
	machine *machine.Machine
	conns   *conn // its sockets, newest first: at most two, and those that are closing
	subs    []subscription

	address int   // behind the one that was tried last
	dials   int   // attempts begun in all
	outage  int64 // since when it is not connected; 0: it is, or never was
	since   int64 // start of the outage that it catches up from
	first   bool  // the next attempt is the first of an outage
	behind  bool  // connected after an outage, and not caught up
	gone    bool  // will not come back
	moves   uint8
}

// subscription is a channel of a client.
type subscription struct {
	*machine.Subscription
	channel *channel
	seq     uint64 // publisher's number of the last event; 0: none seen
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

// conn is the open or opening socket of a link.
func (c *client) conn(link int) *conn {
	for k := c.conns; k != nil; k = k.next {
		if k.link == link && k.state != leaving {
			return k
		}
	}
	return nil
}

// begin starts a client.
func (l *loop) begin(c *client) {
	c.machine = machine.New(&l.protocol, &l.stats)
	c.subs = make([]subscription, len(l.cfg.Subscriptions))
	for i, s := range l.cfg.Subscriptions {
		ch := l.channel(s.Channel(c.number))
		c.subs[i].channel, c.subs[i].Subscription = ch, machine.NewSubscription(ch.name, &c.subs[i])
		_ = c.machine.Subscribe(l.time(), c.subs[i].Subscription) // a name twice is one subscription
	}
	c.machine.Start(l.time())
	l.step(c)
}

// channel interns a name.
func (l *loop) channel(name string) *channel {
	ch := l.channels[name]
	if ch == nil {
		// What the server writes before the offset; a name that JSON escapes is found
		// on the slow path.
		ch = &channel{name: name, head: []byte(`"` + name + `","offset":`)}
		l.channels[name] = ch
	}
	return ch
}

// time is the machines' clock.
func (l *loop) time() time.Time { return l.start.Add(time.Duration(l.now)) }

func (l *loop) random(d time.Duration) time.Duration { return jitter(d, l.rand) }

// step carries out what the machine of a client says, and lets it sleep.
func (l *loop) step(c *client) {
	for list := c.machine.Take(); len(list) > 0; list = c.machine.Take() {
		for _, a := range list {
			l.carryOut(c, a)
		}
	}
	if c.behind && c.caughtUp() {
		c.behind = false
		l.counts.CaughtUp++
		l.caughtUp.add(l.now - c.since)
	}
	l.sleep(c)
}

// sleep sets the timer to when the machine has something to do.
func (l *loop) sleep(c *client) {
	at := c.machine.Wake()
	if at.IsZero() {
		l.timers.clear(&c.timer)
		return
	}
	if due := int64(at.Sub(l.start)); c.timer.heapAt < 0 || due != c.timer.due {
		l.timers.set(&c.timer, due)
	}
}

func (l *loop) carryOut(c *client, a machine.Action) {
	switch a := a.(type) {
	case machine.OpenLink:
		l.open(c, a)
	case machine.Send:
		if k := c.conn(a.Link); k != nil {
			l.send(k, a.Text)
		}
	case machine.DropLink:
		if k := c.conn(a.Link); k != nil {
			l.drop(k, a.Code)
		}
	case machine.AskToken:
		l.counts.TokenAsks++
		token, err := l.token(c)
		c.machine.Token(l.time(), token, err)
	case machine.TellState:
		l.state(c, a.StateChange)
	case machine.TellMove:
		if a.Err == machine.ErrSameNode {
			l.counts.SameNode++
		}
	case machine.TellEvent:
		l.delivered(a.Sub.Owner.(*subscription), &a.Event)
	case machine.TellGap:
		l.gap(a.Sub.Owner.(*subscription), &a.Gap)
	}
}

// token is what the client's provider gives.
func (l *loop) token(c *client) (string, error) {
	rights := make(map[string][]string, len(c.subs))
	for i := range c.subs {
		rights[c.subs[i].channel.name] = []string{"subscribe", "history"}
	}
	return auth.Mint(l.cfg.Secret, "c"+strconv.Itoa(c.number), rights, nil, tokenLife, time.Now())
}

// state counts what becomes of a client.
func (l *loop) state(c *client, s machine.StateChange) {
	switch {
	case s.To == machine.Connected:
		l.up++
		l.returns = count(l.returns, time.Duration(l.now))
		c.first = false
		if c.outage != 0 {
			l.outage.add(l.now - c.outage)
			c.behind, c.since, c.outage = true, c.outage, 0
		}
		return
	case s.From == machine.Connected:
		l.up--
		l.counts.Interrupted++
		l.ends = count(l.ends, time.Duration(l.now))
		c.outage, c.first, c.behind = l.now, true, false
	}
	switch {
	case s.To == machine.Disconnected:
		if !c.gone {
			c.gone = true
			l.gone++
		}
	case l.cfg.Policy.Kind == "" && s.Err != nil && !l.away:
		c.machine.Stop(errStaysAway)
	}
}

// caughtUp says that all channels have reached the head that they were told.
func (c *client) caughtUp() bool {
	for i := range c.subs {
		if s := &c.subs[i]; !s.CaughtUp() && c.machine.Subscription(s.channel.name) == s.Subscription {
			return false
		}
	}
	return true
}

var (
	connectHead = []byte(`{"type":"connect",`)
	pingHead    = []byte(`{"type":"ping",`)
)

// send gives a command of the machine to the socket.
func (l *loop) send(k *conn, text []byte) {
	switch {
	case bytes.HasPrefix(text, pingHead):
		l.counts.Pings++
	case bytes.HasPrefix(text, connectHead):
		k.noteAsked()
	}
	l.sendFrame(k, ws.OpText, text)
}
