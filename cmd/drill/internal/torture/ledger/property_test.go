package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"
)

// simulate is a run over a log that keeps every promise: publishes and reads take
// effect at a moment between call and answer, subscribers hear each event some time
// after it was stored, come and go, and retention cuts now and then.
func simulate(seed uint64) *Notes {
	rng := rand.New(rand.NewPCG(seed, 1))
	n, log := &Notes{}, []string(nil)
	keys := make(map[string]uint64)
	first, now := uint64(1), time.Duration(0)
	var streams []*Stream
	position := make(map[*Stream]uint64)
	span := func() (call, ret time.Duration) {
		return max(0, now-time.Duration(rng.IntN(5000))), now + time.Duration(rng.IntN(5000))
	}
	page := func(by string, after uint64) Read {
		r := Read{By: by, Channel: channel, After: after, Epoch: "e1", Head: uint64(len(log)), First: first}
		for o := max(after+1, first); o <= r.Head; o++ {
			r.Events = append(r.Events, Event{o, log[o-1]})
		}
		return r
	}
	deliver := func(s *Stream, to uint64) {
		for ; position[s] < to; position[s]++ {
			o := position[s] + 1
			if o < first {
				s.Steps = append(s.Steps, Step{Time: now, Kind: Lost, From: at(position[s]), At: at(to)})
				position[s] = to
				return
			}
			s.Steps = append(s.Steps, Step{Time: now, Kind: Received, At: at(o), Value: log[o-1]})
		}
	}
	for i := range 20 + rng.IntN(60) {
		now += time.Duration(1 + rng.IntN(2000))
		switch rng.IntN(10) {
		case 0, 1, 2, 3:
			p := Publish{By: "p", Channel: channel, Value: fmt.Sprint("v", i), Outcome: Acked}
			p.Call, p.Return = span()
			if rng.IntN(3) == 0 {
				p.Key = fmt.Sprint("k", rng.IntN(4))
			}
			switch o := keys[p.Key]; {
			case o > 0:
				p.At, p.Repeat = at(o), true
			case rng.IntN(8) == 0:
				p.Outcome = Refused
			case rng.IntN(8) == 0:
				p.Outcome = Unknown
			default:
				log = append(log, p.Value)
				p.At = at(uint64(len(log)))
				if p.Key != "" {
					keys[p.Key] = p.At.Offset
				}
				if rng.IntN(8) == 0 {
					p.At, p.Outcome = Position{}, Unknown
				}
			}
			n.Publishes = append(n.Publishes, p)
		case 4, 5:
			r := page("r", uint64(rng.IntN(len(log)+1)))
			r.Call, r.Return = span()
			n.Reads = append(n.Reads, r)
		case 6:
			s := &Stream{By: fmt.Sprint("w", i), Channel: channel, Live: rng.IntN(2) == 0}
			position[s] = uint64(len(log))
			s.Steps = append(s.Steps, Step{Time: now, Kind: Joined, At: at(position[s])})
			streams = append(streams, s)
		case 7, 8:
			for _, s := range streams {
				deliver(s, position[s]+uint64(rng.IntN(len(log)-int(position[s])+1)))
			}
		case 9:
			if rng.IntN(4) == 0 {
				first = uint64(len(log)) + 1
				n.Trims = append(n.Trims, Trim{channel, now - 1, now, first})
			}
		}
	}
	now += 10000
	end := page("end", 0)
	end.Call, end.Return = now, now
	n.Finals = []Read{end}
	for _, s := range streams {
		if s.Live {
			deliver(s, uint64(len(log)))
		}
		n.Streams = append(n.Streams, *s)
	}
	return n
}

func TestWhatKeepsEveryPromisePasses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if found := Check(simulate(rapid.Uint64().Draw(rt, "seed")), strict); len(found) > 0 {
			rt.Fatal(found[0].String())
		}
	})
}

// One thing changed in a run that kept every promise, somewhere, is found.
func TestOneChangeAnywhereIsFound(t *testing.T) {
	mutations := map[string]func(*rand.Rand, *Notes) bool{
		"an event left out of a stream": func(r *rand.Rand, n *Notes) bool {
			return someStep(r, n, func(s *Stream, i int) bool {
				if !s.Live && i == len(s.Steps)-1 {
					return false // it left before
				}
				s.Steps = slices.Delete(s.Steps, i, i+1)
				return true
			})
		},
		"an event doubled": func(r *rand.Rand, n *Notes) bool {
			return someStep(r, n, func(s *Stream, i int) bool { s.Steps = slices.Insert(s.Steps, i, s.Steps[i]); return true })
		},
		"another event delivered": func(r *rand.Rand, n *Notes) bool {
			return someStep(r, n, func(s *Stream, i int) bool { s.Steps[i].Value = "other"; return true })
		},
		"an ack moved": func(r *rand.Rand, n *Notes) bool {
			return some(r, n.Publishes, func(p *Publish) bool {
				if p.Outcome != Acked || p.Key != "" {
					return false
				}
				p.At.Offset = uint64(len(n.Publishes)) + 1
				return true
			})
		},
		"the newest event lost": func(_ *rand.Rand, n *Notes) bool {
			f := &n.Finals[0]
			acked := slices.ContainsFunc(n.Publishes, func(p Publish) bool { return p.At.Offset == f.Head })
			if len(f.Events) == 0 || !acked {
				return false
			}
			f.Head--
			f.Events = f.Events[:len(f.Events)-1]
			return true
		},
		"a hole in the end": func(r *rand.Rand, n *Notes) bool {
			f := &n.Finals[0]
			if len(f.Events) < 2 {
				return false
			}
			i := r.IntN(len(f.Events) - 1)
			f.Events = slices.Delete(f.Events, i, i+1)
			n.Reads = append(n.Reads, *f)
			return true
		},
	}
	for name, mutate := range mutations {
		t.Run(name, func(t *testing.T) {
			changed := 0
			rapid.Check(t, func(rt *rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				n := simulate(seed)
				if !mutate(rand.New(rand.NewPCG(seed, 2)), n) {
					return
				}
				changed++
				if len(Check(n, strict)) == 0 {
					rt.Fatalf("seed %d: not found", seed)
				}
			})
			if changed < 20 {
				t.Errorf("only %d runs could be changed", changed)
			}
		})
	}
}

func some[T any](r *rand.Rand, all []T, change func(*T) bool) bool {
	for _, i := range r.Perm(len(all)) {
		if change(&all[i]) {
			return true
		}
	}
	return false
}

// someStep changes an event that somebody received.
func someStep(r *rand.Rand, n *Notes, change func(*Stream, int) bool) bool {
	return some(r, n.Streams, func(s *Stream) bool {
		for _, i := range r.Perm(len(s.Steps)) {
			if s.Steps[i].Kind == Received && change(s, i) {
				return true
			}
		}
		return false
	})
}

// For reads and appends at random times, porcupine and the two operations that are shown
// for an explanation agree: two are shown if and only if there is no order.
func TestTheConflictShownIsTheOneThatPorcupineFound(t *testing.T) {
	legal := 0
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		var ops []op
		n := 1 + rng.IntN(5)
		moment := func(i int) time.Duration { return max(0, time.Duration(i*20+rng.IntN(30)-15)) }
		for i := range n {
			o := op{offset: uint64(i + 1), call: moment(i)}
			o.ret = o.call + time.Duration(rng.IntN(30))
			ops = append(ops, o)
		}
		for range rng.IntN(5) {
			i := rng.IntN(n + 1)
			o := op{kind: []opKind{readOp, repeatOp}[rng.IntN(2)], offset: uint64(i), call: moment(i)}
			o.ret = o.call + time.Duration(rng.IntN(30))
			ops = append(ops, o)
		}
		history := make([]porcupine.Operation, len(ops))
		for i := range ops {
			history[i] = porcupine.Operation{ClientId: i, Input: &ops[i], Call: int64(ops[i].call), Return: int64(ops[i].ret)}
		}
		ok := porcupine.CheckOperations(model, history)
		first, second := conflict(ops)
		if ok != (first == nil) {
			rt.Fatalf("porcupine %v, conflict %+v %+v in %+v", ok, first, second, ops)
		}
		if ok {
			legal++
		}
	})
	if legal == 0 {
		t.Error("no history was legal")
	}
}
