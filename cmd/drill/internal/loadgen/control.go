package loadgen

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// Commands to a generator, one JSON object a line.
const (
	cmdStart  = "start"  // config: must be the first
	cmdWant   = "want"   // n clients are to be connected; may only rise
	cmdMark   = "mark"   // name: a phase begins
	cmdNotify = "notify" // a status each n deliveries from now on; 0: by time only
	cmdAway   = "away"   // all clients close their connections and stay away
	cmdBack   = "back"   // n ms: those who are away come back within them
	cmdReport = "report"
	cmdStop   = "stop"
)

type command struct {
	Cmd    string  `json:"cmd"`
	Config *Config `json:"config,omitempty"`
	N      int     `json:"n,omitempty"`
	Name   string  `json:"name,omitempty"`
}

// Lines from a generator.
const (
	lineReady  = "ready"  // answers start
	lineStatus = "status" // every 200 ms, and as notify says
	lineReport = "report" // answers report
	lineMarked = "marked" // answers mark, notify, away and back
	lineError  = "error"  // the last line
)

type line struct {
	Type       string  `json:"type"`
	Up         int     `json:"up,omitempty"`
	Gone       int     `json:"gone,omitempty"`
	Deliveries uint64  `json:"deliveries,omitempty"`
	Report     *Report `json:"report,omitempty"`
	Message    string  `json:"message,omitempty"`
}

// readControl serves the commands that have come.
func (l *loop) readControl() error {
	err := l.orders.Obey(l.buf, l.obey)
	if err == io.EOF {
		l.stopping = true
		return nil
	}
	return err
}

func (l *loop) obey(c *command) error {
	if c.Cmd != cmdStart && l.clients == nil {
		return errNotStarted
	}
	switch c.Cmd {
	case cmdStart:
		return l.configure(c.Config)
	case cmdWant:
		if c.N > len(l.clients) {
			return fmt.Errorf("want: %d is more than max, %d", c.N, len(l.clients))
		}
		l.want = max(l.want, c.N)
	case cmdMark:
		l.startPhase(c.Name)
		l.say(line{Type: lineMarked})
	case cmdNotify:
		l.notify = uint64(max(c.N, 0))
		l.notifyAt = l.counts.Deliveries + l.notify
		l.say(line{Type: lineMarked})
	case cmdAway:
		l.sendAway()
		l.say(line{Type: lineMarked})
	case cmdBack:
		l.bringBack(time.Duration(max(c.N, 1)) * time.Millisecond)
		l.say(line{Type: lineMarked})
	case cmdReport:
		l.say(line{Type: lineReport, Report: l.report()})
	case cmdStop:
		l.stopping = true
	default:
		return fmt.Errorf("unknown command %q", c.Cmd)
	}
	return nil
}

func (l *loop) configure(cfg *Config) error {
	if l.clients != nil || cfg == nil {
		return errors.New("start: once, with a config")
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	l.cfg = *cfg
	foreign, err := cfg.Policy.foreign()
	if err != nil {
		return err
	}
	l.protocol = machine.Config{URLs: []string{home}, HasProvider: len(cfg.Secret) > 0, Name: "loadgen", Random: l.random, Foreign: foreign}
	for _, t := range cfg.Targets {
		parsed, err := parseTarget(t)
		if err != nil {
			return err
		}
		l.targets = append(l.targets, parsed)
	}
	for _, s := range cfg.Sources {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return err
		}
		l.sources = append(l.sources, a.As4())
	}
	l.clients = make([]client, cfg.Max)
	for i := range l.clients {
		c := &l.clients[i]
		c.number, c.timer = cfg.First+i, timer{heapAt: -1, client: c}
	}
	l.begins()
	l.startPhase("")
	l.say(line{Type: lineReady})
	return nil
}

// startPhase starts a phase.
func (l *loop) startPhase(name string) {
	l.mark, l.markName, l.markAt, l.markCPU = l.counts, name, int64(time.Since(l.start)), cpuTime()
	l.latency, l.connect, l.outage, l.caughtUp = Histogram{}, Histogram{}, Histogram{}, Histogram{}
	for i := range l.clients {
		l.clients[i].moves = 0
	}
}

// status says how it goes, if it is time to.
func (l *loop) status() {
	if !l.tellNow && l.now < l.statusDue {
		return
	}
	l.tellNow = false
	l.statusDue = l.now + int64(statusEvery)
	if l.clients != nil {
		l.say(line{Type: lineStatus, Up: l.up, Gone: l.gone, Deliveries: l.counts.Deliveries})
	}
}

// say writes a line. The reader keeps up or the generator waits: there is nothing
// useful to do without one. When it has gone, so does the generator.
func (l *loop) say(v line) {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	if err != nil {
		l.stopping = true
	}
}

func (l *loop) report() *Report {
	r := &Report{
		Wanted: l.want, Up: l.up, Total: l.counts, Phase: l.counts, PhaseName: l.markName,
		PhaseTime: time.Since(l.start) - time.Duration(l.markAt), Latency: l.latency, Connect: l.connect,
		Outage: l.outage, CaughtUp: l.caughtUp, MovesEach: l.movesEach(), ByNode: l.byNode,
		CPU: cpuTime() - l.markCPU, MaxRSS: maxRSS(), Start: l.start, Codes: l.codeNames(),
		Refused: maps.Clone(l.refused), Errors: maps.Clone(l.errors), Causes: map[string]uint64{},
		Arrivals: l.arrivals, Refusals: l.refusals, Returns: l.returns, Ends: l.ends,
	}
	r.Phase.Sub(l.mark)
	for c, n := range l.causes {
		if n > 0 {
			r.Causes[Cause(c).String()] = n
		}
	}
	return r
}

// movesEach counts clients by how often they moved in this phase.
func (l *loop) movesEach() []uint32 {
	each := make([]uint32, maxMoves)
	for i := range l.clients[:l.begun] {
		each[l.clients[i].moves]++
	}
	return each
}

// cpuTime is user and system time of this process.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func maxRSS() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Maxrss << 10
}

// codeNames has the codes as JSON keys.
func (l *loop) codeNames() map[string]uint64 {
	m := make(map[string]uint64, len(l.codes))
	for code, n := range l.codes {
		m[strconv.Itoa(int(code))] = n
	}
	return m
}
