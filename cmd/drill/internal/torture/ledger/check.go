package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Breach is one promise that was not kept.
type Breach struct {
	Rule    string
	Channel string
	Text    string
	History []string // the notes around it, in order of time
}

func (b *Breach) String() string {
	return fmt.Sprintf("(%s) %s: %s\n\t%s", b.Rule, b.Channel, b.Text, strings.Join(b.History, "\n\t"))
}

// mostPerRule bounds what is told of one rule and subscriber of a channel: one fault
// breaks many things.
const mostPerRule = 3

// Check holds the notes against the promises, channel by channel.
func Check(n *Notes, rules func(channel string) Rules) []Breach {
	audits := make(map[string]*audit)
	of := func(channel string) *audit {
		a := audits[channel]
		if a == nil {
			a = &audit{channel: channel, rules: rules(channel)}
			audits[channel] = a
		}
		return a
	}
	for i := range n.Publishes {
		a := of(n.Publishes[i].Channel)
		a.publishes = append(a.publishes, &n.Publishes[i])
	}
	for i := range n.Reads {
		a := of(n.Reads[i].Channel)
		a.reads = append(a.reads, &n.Reads[i])
	}
	for i := range n.Streams {
		a := of(n.Streams[i].Channel)
		a.streams = append(a.streams, &n.Streams[i])
	}
	for i := range n.Trims {
		a := of(n.Trims[i].Channel)
		a.trims = append(a.trims, &n.Trims[i])
	}
	for i := range n.Finals {
		of(n.Finals[i].Channel).final = &n.Finals[i]
	}
	var all []Breach
	for _, channel := range slices.Sorted(maps.Keys(audits)) {
		a := audits[channel]
		a.run()
		all = append(all, a.breaches...)
	}
	return all
}

// audit is the look at one channel.
type audit struct {
	channel   string
	rules     Rules
	publishes []*Publish
	reads     []*Read
	streams   []*Stream
	trims     []*Trim
	final     *Read // nil: the run could not read it

	values   map[string]*Publish // by value
	truth    map[Position]string // values
	seen     map[Position]time.Duration
	places   map[string][]Position // of values
	told     map[string]int        // breaches by rule and first word
	breaches []Breach
}

func (a *audit) run() {
	a.values, a.truth, a.seen = make(map[string]*Publish), make(map[Position]string), make(map[Position]time.Duration)
	a.places, a.told = make(map[string][]Position), make(map[string]int)
	for _, p := range a.publishes {
		a.values[p.Value] = p
	}
	a.gather()
	a.origins()
	a.keys()
	a.acks()
	a.flows()
	a.ends()
	for _, r := range a.reads {
		a.page(r)
	}
	for _, s := range a.streams {
		a.stream(s)
	}
	if a.rules.Durable && a.rules.Linear {
		a.linear()
	}
}

// breach notes one, with what is known around some positions.
func (a *audit) breach(rule string, around []Position, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	who, _, _ := strings.Cut(text, " ") // what one subscriber heard must not hide another's
	if a.told[rule+who]++; a.told[rule+who] > mostPerRule {
		return
	}
	a.breaches = append(a.breaches, Breach{rule, a.channel, text, a.around(around)})
}

// nearby is how far from a position notes still matter, and mostLines how many are shown.
const (
	nearby    = 1
	mostLines = 40
)

// around are the notes that touch positions, in order of time.
func (a *audit) around(positions []Position) []string {
	near := func(epoch string, from, to uint64) bool {
		return slices.ContainsFunc(positions, func(p Position) bool {
			return (epoch == p.Epoch || p.Epoch == "") && from <= p.Offset+nearby && p.Offset <= to+nearby
		})
	}
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	add := func(at time.Duration, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf("%9.3f ", at.Seconds()) + fmt.Sprintf(format, args...)})
	}
	for _, p := range a.publishes {
		at := p.At
		if places := a.places[p.Value]; len(places) > 0 && p.Outcome != Acked {
			at = places[0]
		}
		if at.Offset > 0 && near(at.Epoch, at.Offset, at.Offset) {
			add(p.Call, "to %.3f: %v", p.Return.Seconds(), p)
		}
	}
	for _, r := range a.reads {
		if near(r.Epoch, r.Head, r.Head) {
			add(r.Call, "to %.3f: %v", r.Return.Seconds(), r)
		}
	}
	for _, s := range a.streams {
		for i := range s.Steps {
			step := &s.Steps[i]
			if !step.touches(near) {
				continue
			}
			if i > 0 && s.Steps[i-1].silent() {
				add(s.Steps[i-1].Time, "%s %v", s.By, &s.Steps[i-1])
			}
			add(step.Time, "%s %v", s.By, step)
		}
	}
	for _, t := range a.trims {
		if near("", 1, t.First-1) {
			add(t.Call, "to %.3f: %v", t.Return.Seconds(), t)
		}
	}
	slices.SortStableFunc(lines, func(x, y line) int { return cmp.Compare(x.at, y.at) })
	var out []string
	for i, l := range lines {
		if half := mostLines / 2; i == half && len(lines) > mostLines {
			out = append(out, fmt.Sprintf("… %d more …", len(lines)-mostLines))
		} else if i > half && i < len(lines)-half {
			continue
		}
		out = append(out, l.text)
	}
	return out
}

// silent steps have no position.
func (s *Step) silent() bool { return s.Kind == Away || s.Kind == Pending }

func (s *Step) touches(near func(epoch string, from, to uint64) bool) bool {
	from := s.At.Offset
	if s.Kind == Lost && s.From.Epoch == s.At.Epoch {
		from = s.From.Offset
	}
	return !s.silent() && near(s.At.Epoch, from, s.At.Offset)
}
