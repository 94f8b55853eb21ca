package ledger

import (
	"maps"
	"slices"
	"time"
)

// gather makes one picture of the channel out of what everybody saw.
func (a *audit) gather() {
	for _, p := range a.publishes {
		if p.Outcome != Acked {
			continue
		}
		a.sight(p.At, p.Return)
		if !p.Repeat {
			a.observe(p.At, p.Value, p.Return, p.By+"'s ack")
		}
	}
	for _, r := range a.pages() {
		if r.Head > 0 {
			a.sight(Position{r.Epoch, r.Head}, r.Return)
		}
		for _, e := range r.Events {
			a.observe(Position{r.Epoch, e.Offset}, e.Value, r.Return, r.By+"'s read")
		}
	}
	for _, s := range a.streams {
		for i := range s.Steps {
			switch step := &s.Steps[i]; step.Kind {
			case Received:
				a.observe(step.At, step.Value, step.Time, s.By)
			case Joined, Lost:
				if step.At.Offset > 0 {
					a.sight(step.At, step.Time)
				}
			}
		}
	}
	for at, value := range a.truth {
		a.places[value] = append(a.places[value], at)
	}
}

// pages are all reads, the last one too.
func (a *audit) pages() []*Read {
	if a.final == nil {
		return a.reads
	}
	return append(slices.Clone(a.reads), a.final)
}

// sight: at some time the head was there or beyond.
func (a *audit) sight(at Position, when time.Duration) {
	if t, ok := a.seen[at]; !ok || when < t {
		a.seen[at] = when
	}
}

func (a *audit) observe(at Position, value string, when time.Duration, by string) {
	a.sight(at, when)
	if old, ok := a.truth[at]; ok {
		if old != value {
			a.breach("agreement", []Position{at}, "%s has %s at %v, others have %s there", by, value, at, old)
		}
		return
	}
	a.truth[at] = value
}

// origins: every event was published, once, and before it was seen.
func (a *audit) origins() {
	for _, value := range slices.Sorted(maps.Keys(a.places)) {
		places := a.sorted(value)
		p := a.values[value]
		switch {
		case p == nil:
			a.breach("nowhere", places, "nobody published %s, which is at %v", value, places)
			continue
		case a.seen[places[0]] < p.Call:
			a.breach("nowhere", places[:1], "%s was seen at %v before it was published", value, places[0])
		}
		if p.Outcome == Refused {
			a.breach("refused", places, "%s was refused (%s) and is at %v", value, p.Why, places)
		}
		if a.twice(p, places) {
			a.breach("twice", places, "%s is at %v", value, places)
		}
	}
}

// twice says that an event has a place too many.
func (a *audit) twice(p *Publish, places []Position) bool {
	return len(places) > 1 && (a.rules.Durable || p.Key == "" || places[0].Epoch == places[1].Epoch)
}

func (a *audit) sorted(value string) []Position {
	return slices.SortedFunc(slices.Values(a.places[value]), func(x, y Position) int {
		return int(a.seen[x] - a.seen[y])
	})
}

// keys: one key is one event.
func (a *audit) keys() {
	if !a.rules.Durable {
		return
	}
	first := make(map[string]Position)
	for _, at := range slices.SortedFunc(maps.Keys(a.truth), func(x, y Position) int { return int(a.seen[x] - a.seen[y]) }) {
		p := a.values[a.truth[at]]
		if p == nil || p.Key == "" {
			continue
		}
		if other, ok := first[p.Key]; ok {
			a.breach("key", []Position{other, at}, "key %s is at %v and at %v", p.Key, other, at)
			continue
		}
		first[p.Key] = at
	}
}

// acks: what was acked is where the ack says, or it was a repeat of what is there.
func (a *audit) acks() {
	for _, p := range a.publishes {
		if p.Outcome != Acked {
			continue
		}
		if a.rules.Durable && a.final != nil && (p.At.Epoch != a.final.Epoch || p.At.Offset > a.final.Head) {
			a.breach("ack", []Position{p.At}, "%v; in the end epoch %s has the head %d", p, a.final.Epoch, a.final.Head)
			continue
		}
		value, known := a.truth[p.At]
		if !known || value == p.Value {
			continue
		}
		if other := a.values[value]; p.Key == "" || other == nil || other.Key != p.Key {
			a.breach("ack", []Position{p.At}, "%v, where %s is", p, value)
		}
	}
}

// flows: what one call or stream brought stands in its order.
func (a *audit) flows() {
	flows := make(map[string][]*Publish)
	for _, p := range a.publishes {
		if p.Flow != "" && p.Outcome == Acked && !p.Repeat {
			flows[p.Flow] = append(flows[p.Flow], p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(flows)) {
		flow := flows[name]
		slices.SortFunc(flow, func(x, y *Publish) int { return x.Turn - y.Turn })
		for i, p := range flow[1:] {
			if before := flow[i]; p.At.Epoch == before.At.Epoch && p.At.Offset <= before.At.Offset {
				a.breach("flow", []Position{before.At, p.At}, "%s brought %s before %s, which stand at %v and %v", name, before.Value, p.Value, before.At, p.At)
			}
		}
	}
}

// ends: a durable channel has one epoch, and all of its history that no retention cut.
func (a *audit) ends() {
	if !a.rules.Durable {
		return
	}
	epochs := make(map[string]Position)
	for at := range a.seen {
		epochs[at.Epoch] = at
	}
	if len(epochs) > 1 {
		a.breach("epoch", slices.Collect(maps.Values(epochs)), "there are epochs %v", slices.Sorted(maps.Keys(epochs)))
	}
	if a.final == nil {
		return
	}
	r := a.final
	if cut := a.trimmed(r.Return); r.First > cut+1 {
		a.breach("hole", []Position{{r.Epoch, r.First}}, "in the end history begins at %d; retention had left what is from %d on", r.First, cut+1)
	}
}

// trimmed is the last offset that retention may have cut by then.
func (a *audit) trimmed(by time.Duration) uint64 {
	last := uint64(0)
	for _, t := range a.trims {
		if t.Call <= by && t.First > 0 {
			last = max(last, t.First-1)
		}
	}
	return last
}

// page: what a read returned has the form that it must have.
func (a *audit) page(r *Read) {
	next := max(r.After+1, r.First)
	if r.Reverse {
		next = r.Head
	}
	for _, e := range r.Events {
		if e.Offset != next {
			a.breach("hole", []Position{{r.Epoch, e.Offset}, {r.Epoch, next}}, "%v: offset %d where %d was due", r, e.Offset, next)
			return
		}
		if r.Reverse {
			next--
		} else {
			next++
		}
	}
	short := next <= r.Head
	if r.Reverse {
		short = next >= r.First && next > 0
	}
	if short && !r.More {
		a.breach("hole", []Position{{r.Epoch, next}}, "%v: offset %d is missing", r, next)
	}
	if cut := a.trimmed(r.Return); a.rules.Durable && r.First > cut+1 {
		a.breach("hole", []Position{{r.Epoch, r.First}}, "%v: begins at %d; retention had left what is from %d on", r, r.First, cut+1)
	}
}
