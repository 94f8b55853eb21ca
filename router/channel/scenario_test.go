package channel_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

var update = flag.Bool("update", false, "write what the scenarios log into their files")

// Each file of testdata is one story of a channel on router a: commands, and below each
// what the channel wants done. The commands are the methods of script.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			synctest.Test(t, func(t *testing.T) { got = play(t, string(data)) })
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, have := strings.Split(string(data), "\n"), strings.Split(got, "\n")
			for i := range max(len(want), len(have)) {
				if i >= len(want) || i >= len(have) || want[i] != have[i] {
					t.Fatalf("%s:%d: from here on it is\n%s", file, i+1, strings.Join(have[min(i, len(have)):], "\n"))
				}
			}
		})
	}
}

// play carries out the commands of a file, and returns it with what they logged.
func play(t *testing.T, file string) string {
	s := &script{t: t, pubs: make(map[string]*channel.Publication)}
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimRight(file, "\n"), "\n") {
		command, is := strings.CutPrefix(line, "> ")
		switch {
		case is:
			fmt.Fprintln(&out, line)
			for _, logged := range s.command(command) {
				fmt.Fprintln(&out, "  "+logged)
			}
			if err := channel.Check(s.c); err != nil {
				t.Fatalf("after %q: %v", line, err)
			}
		case !strings.HasPrefix(line, "  "):
			fmt.Fprintln(&out, line) // a remark, or an empty line
		}
	}
	return out.String()
}

// script is a bench that is told what to do by a file.
type script struct {
	t *testing.T
	*bench
	ns     namespace.Namespace
	pubs   map[string]*channel.Publication
	run    *channel.Run
	handed *channel.Handed
}

// words is the arguments of a command: words, and name=value.
type words map[string]string

func (w words) number(name string) uint64 {
	n, err := strconv.ParseUint(w[name], 10, 64)
	if err != nil && w[name] != "" {
		panic(err)
	}
	return n
}

func (w words) position(name string) (channel.Position, bool) {
	text, is := w[name]
	epoch, offset, _ := strings.Cut(text, ":")
	return channel.Position{Epoch: words{"": epoch}.number(""), Offset: words{"": offset}.number("")}, is
}

func (w words) is(name string) bool {
	_, is := w[name]
	return is
}

func (s *script) command(line string) []string {
	fields := strings.Fields(line)
	args := words{}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		args[key] = value
	}
	if s.bench != nil {
		s.log = nil
	}
	commands := map[string]func([]string, words){
		"channel": s.channel, "view": s.view, "viewed": s.viewed, "away": s.away, "leave": s.leave, "wait": s.wait, "tick": s.tick,
		"publish": s.publish, "giveup": s.giveUp, "take": s.take, "written": s.written, "ask": s.ask, "page": s.page, "read": s.read,
		"give": s.give, "given": s.given, "returned": s.returned, "withdrawn": s.withdrawn, "accept": s.accept, "asked": s.asked,
		"nobody": s.nobody, "state": s.state, "head": s.head,
	}
	do := commands[fields[0]]
	if do == nil {
		s.t.Fatalf("no command %q", fields[0])
	}
	do(fields[1:], args)
	return s.log
}

// channel committed|none [norecover] [size=N] [foreign] begins with a channel of which
// nothing is known.
func (s *script) channel(_ []string, args words) {
	s.ns = namespace.Namespace{HistorySize: int(args.number("size")), HistoryTTL: time.Hour, Recover: !args.is("norecover")}
	if args.is("none") {
		s.ns.Durability = namespace.None
	}
	c := channel.New(name, &s.ns)
	if args.is("foreign") {
		c = channel.NewForeign(name, &s.ns)
	}
	s.bench = newBench("a", c)
	s.finish = func(p *channel.Publication, r channel.Result) {
		if p.Stage() == channel.Done {
			s.t.Fatalf("%s is finished twice", s.names[p])
		}
		p.Finish(r)
	}
}

// view REVISION ROUTER... is in force from now on; a router with ! is leaving.
func (s *script) view(fields []string, _ words) {
	serving := make(map[string]bool)
	for _, f := range fields[1:] {
		id, leaving := strings.CutSuffix(f, "!")
		serving[id] = !leaving
	}
	s.members.set(routersOf(int64(words{"": fields[0]}.number("")), serving))
	s.views.View() // it counts from now on
}

func (s *script) viewed([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) { c.Viewed(st) })
}
func (s *script) away([]string, words)  { s.members.losses.Add(1) }
func (s *script) leave([]string, words) { s.views.Depart() }

// wait DURATION lets time pass.
func (s *script) wait(fields []string, _ words) {
	d, err := time.ParseDuration(fields[0])
	if err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(d)
}

func (s *script) tick([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) {
		if !s.watched {
			s.note("nothing is watched")
			return
		}
		s.watched = c.Tick(st)
	})
}

// publish NAME [key=K] [bytes=N] [here] [hops=N]
func (s *script) publish(fields []string, args words) {
	data := fields[0]
	if n := int(args.number("bytes")); n > 0 {
		data += " " + strings.Repeat("x", n)
	}
	p := &channel.Publication{Channel: name, Namespace: &s.ns, Call: channel.NewCall(1), Here: args.is("here"), Hops: uint32(args.number("hops"))}
	p.Event = history.Event{Data: []byte(data), Key: args["key"]}
	p.Measure()
	s.pubs[fields[0]], s.names[p] = p, fields[0]
	s.do(func(c *channel.Channel, st *channel.Step) { c.Publish(st, p) })
}

// giveup NAME: its caller waits no more.
func (s *script) giveUp(fields []string, _ words) {
	s.note("%s hears: %s", fields[0], resultOf(s.pubs[fields[0]].GiveUp()))
}

// take [N] takes a run of at most so many events.
func (s *script) take(fields []string, _ words) {
	most := 100
	if len(fields) > 0 {
		most = int(words{"": fields[0]}.number(""))
	}
	s.ready = false
	s.do(func(c *channel.Channel, st *channel.Step) {
		r := c.Take(st, most, 1<<20)
		if r == nil {
			return
		}
		s.run = r
		load := ""
		if r.Load {
			load = ", to be loaded"
		}
		s.note("run of %s at %s%s, %d unknown", s.namesOf(r.Pubs), at(r.Believed), load, len(r.Unknown))
	})
}

// written says what became of the run: row=E:H (it was read), found=I (of the unknown
// runs one is stored), over=I (one of them will never be), stored=E:H (all that is left,
// or N=… of it), lost, unknown=E:H (nobody knows), away (the store is), refused (the first).
func (s *script) written(_ []string, args words) {
	r := s.run
	if s.run = nil; r == nil {
		s.note("there is no run")
		return
	}
	if p, is := args.position("row"); is {
		r.Row = &channel.Row{Position: p, Trust: s.step.Look.Trust()}
	}
	for _, name := range []string{"found", "over"} {
		if !args.is(name) {
			continue
		}
		u := r.Unknown[args.number(name)]
		r.Over = append(r.Over, u)
		if name == "found" {
			r.Found = append(r.Found, u)
			for i, p := range u.Pubs {
				if slices.Contains(r.Pubs, p) || p.Take() { // else its caller has given up
					answer := channel.Answer{Pub: p, Result: channel.Result{Epoch: u.Run.Epoch, Offset: u.Run.Events[i].Offset}}
					r.Answers = append(r.Answers, answer)
				}
				r.Pubs = without(r.Pubs, p)
			}
		}
	}
	if args.is("refused") {
		r.Answers = append(r.Answers, channel.Answer{Pub: r.Pubs[0], Result: channel.Result{Code: 3, Message: "refused"}})
		r.Pubs = r.Pubs[1:]
	}
	if p, is := args.position("stored"); is {
		n := len(r.Pubs)
		if args.is("n") {
			n = int(args.number("n"))
		}
		run := numbered(r.Pubs[:n], p)
		r.Parts = append(r.Parts, channel.Part{Epoch: p.Epoch, Head: p.Offset, Events: channel.BusEvents(run.Events), Trust: s.step.Look.Trust()})
		for i, pub := range r.Pubs[:n] {
			r.Answers = append(r.Answers, channel.Answer{Pub: pub, Result: channel.Result{Epoch: p.Epoch, Offset: run.Events[i].Offset}})
		}
		r.Pubs = r.Pubs[n:]
	}
	if p, is := args.position("unknown"); is {
		r.Attempt = &channel.UnknownRun{Run: numbered(r.Pubs, p), Pubs: r.Pubs}
		for _, pub := range r.Pubs {
			pub.Uncertain = true
		}
	}
	r.Lost, r.Back = args.is("lost"), slices.Clone(r.Pubs)
	s.do(func(c *channel.Channel, st *channel.Step) { c.Written(st, r) })
}

func without(pubs []*channel.Publication, p *channel.Publication) (all []*channel.Publication) {
	for _, q := range pubs {
		if q != p {
			all = append(all, q)
		}
	}
	return all
}

func numbered(pubs []*channel.Publication, p channel.Position) history.Run {
	run := history.Run{Channel: name, Epoch: p.Epoch, Head: p.Offset}
	for i, pub := range pubs {
		pub.Event.Offset, pub.Event.TimeMS = p.Offset+1+uint64(i), time.Now().UnixMilli()
		run.Events = append(run.Events, pub.Event)
	}
	return run
}

// ask NAME [pos=E:O] [last=N] [seen=E:O] [deadline=D] [gone]
func (s *script) ask(fields []string, args words) {
	q := &channel.Question{Ask: &gatewayv1.Ask{Channel: name, Last: uint32(args.number("last"))}, Namespace: &s.ns, MaxBytes: 1 << 20}
	if p, is := args.position("pos"); is {
		q.Ask.Epoch, q.Ask.Offset = &p.Epoch, p.Offset
	}
	seen, _ := args.position("seen")
	q.Ask.SeenEpoch, q.Ask.SeenOffset = seen.Epoch, seen.Offset
	q.Deadline, q.Gone = s.until(args), func() bool { return args.is("gone") }
	replied, looked := false, 0
	q.Looked = func() { looked++ }
	q.Reply = func(a *gatewayv1.Answer) {
		if replied {
			s.t.Fatalf("%s is answered twice", fields[0])
		}
		replied = true
		s.note("%s hears: %s", fields[0], answerOf(a))
	}
	s.do(func(c *channel.Channel, st *channel.Step) { c.Ask(st, q) })
	if looked != 1 {
		s.t.Fatalf("%s was looked at %d times", fields[0], looked)
	}
}

func (s *script) until(args words) time.Time {
	d := 10 * time.Second
	if args.is("deadline") {
		d, _ = time.ParseDuration(args["deadline"])
	}
	return time.Now().Add(d)
}

func answerOf(a *gatewayv1.Answer) string {
	if a.Status != gatewayv1.Status_STATUS_OK {
		return fmt.Sprintf("%s, again in %d ms", a.Message, a.RetryAfterMs)
	}
	text := fmt.Sprintf("%d:%d, base %d", a.Epoch, a.Head, a.Base)
	if a.Recovered {
		text += ", recovered"
	}
	if a.From > 0 {
		text += fmt.Sprintf(", from %d", a.From)
	}
	if len(a.Events) > 0 {
		text += ", events " + eventsOf(a.Events)
	}
	if a.More {
		text += " and more"
	}
	return text
}

// page NAME [after=N] [before=N] [reverse] [limit=N] [deadline=D] [gone]
func (s *script) page(fields []string, args words) {
	q := &channel.PageQuery{Channel: name, Namespace: &s.ns, Limit: max(1, int(args.number("limit"))), Reverse: args.is("reverse") || args.is("before")}
	for _, word := range []string{"after", "before"} {
		if args.is(word) {
			n := args.number(word)
			q.Offset = &n
		}
	}
	q.Deadline, q.Gone = s.until(args), func() bool { return args.is("gone") }
	q.Reply = func(r channel.PageResult) {
		switch {
		case r.Elsewhere:
			s.note("%s hears: elsewhere", fields[0])
		case r.Result.Code != 0:
			s.note("%s hears: %s, again in %v", fields[0], r.Result.Message, r.Result.RetryAfter)
		default:
			more := ""
			if r.More {
				more = " and more"
			}
			s.note("%s hears: %d:%d from %d, events %s%s", fields[0], r.Epoch, r.Head, r.First, eventsOf(r.Events), more)
		}
	}
	s.do(func(c *channel.Channel, st *channel.Step) { c.Page(st, q) })
}

// read I [at=E:H] [floor=N] [events=FIRST:LAST] [more] [claimed] [failed|busy] answers a
// question to the store. again: the channel was let go and made anew meanwhile.
func (s *script) read(fields []string, args words) {
	n := int(words{"": fields[0]}.number(""))
	if n > len(s.reads) {
		s.note("it was not asked for")
		return
	}
	q := s.reads[n-1]
	p, _ := args.position("at")
	res := &channel.ReadResult{Epoch: p.Epoch, Head: p.Offset, Floor: args.number("floor"), More: args.is("more"), Claimed: args.is("claimed")}
	if res.Floor == 0 {
		res.Floor = 1
	}
	if r, is := args.position("events"); is {
		res.Events = busEvents(r.Epoch, r.Offset)
		if q.Key.Reverse {
			for i, j := 0, len(res.Events)-1; i < j; i, j = i+1, j-1 {
				res.Events[i], res.Events[j] = res.Events[j], res.Events[i]
			}
		}
	}
	switch {
	case args.is("failed"):
		res.Err = channel.ReadFailed
	case args.is("busy"):
		res.Err = channel.ReadBusy
	}
	if args.is("again") {
		s.c = channel.New(name, &s.ns)
	}
	s.do(func(c *channel.Channel, st *channel.Step) { c.Read(st, q.Key, q.Mark, res, []channel.Asker{q.Asker}) })
}

func busEvents(first, last uint64) (all []*gatewayv1.BusEvent) {
	for offset := first; offset <= last; offset++ {
		all = append(all, &gatewayv1.BusEvent{Offset: offset, TimeMs: uint64(time.Now().UnixMilli()), Data: []byte("1")})
	}
	return all
}

// give TO takes the channel out for a router.
func (s *script) give(fields []string, _ words) {
	s.do(func(c *channel.Channel, st *channel.Step) {
		h := c.Give(st, fields[0])
		if h == nil {
			s.note("nothing is given")
			return
		}
		s.handed = h
		m := h.Meta
		s.note("given at %d: %d:%d, base %d, moves %d, events %s, %d keys, trusted %v", h.Revision, m.Epoch, m.Head, m.Base, m.Moves, eventsOf(h.Events), len(h.Keys), m.Settled)
	})
}

func (s *script) given([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) { c.Given(st, s.handed) })
}

func (s *script) returned([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) { c.Returned(st, s.handed) })
}

func (s *script) withdrawn([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) { c.Withdrawn(st) })
}

// accept REVISION at=E:H [moves=N] [events=FIRST:LAST] [base=N] [key=K] [trusted] [other]
func (s *script) accept(fields []string, args words) {
	p, _ := args.position("at")
	h := &channel.Handed{Revision: words{"": fields[0]}.number(""), Meta: &gatewayv1.HandedChannel{
		Channel: name, Epoch: p.Epoch, Head: p.Offset, Base: args.number("base"), Moves: args.number("moves"), Settled: args.is("trusted"),
		Stored: (s.ns.Durability == namespace.Committed) != args.is("other"), Floor: args.number("floor"),
	}}
	if r, is := args.position("events"); is {
		h.Events = busEvents(r.Epoch, r.Offset)
	}
	if args.is("key") {
		h.Keys = append(h.Keys, &gatewayv1.HandedKey{Key: args["key"], Offset: p.Offset})
	}
	s.do(func(c *channel.Channel, st *channel.Step) { c.Accept(st, h) })
}

// asked BY REVISION: another router asks for the channel.
func (s *script) asked(fields []string, _ words) {
	s.do(func(c *channel.Channel, st *channel.Step) {
		s.note("%s hears: %v", fields[0], c.Asked(st, fields[0], words{"": fields[1]}.number("")))
	})
}

func (s *script) nobody([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) { c.Nobody(st) })
}

func (s *script) state([]string, words) {
	in := channel.Look(s.c)
	where := "not known"
	if in.Known {
		where = at(in.At)
	}
	s.note("%s, %s, %d in the tail, shown %s", in.Own, where, in.Tail, at(in.Shown))
	s.note("%d pending, %d unknown, %d waiting, %d keys, busy %v", in.Pending, in.Unknown, in.Waiting, in.Keys, s.c.Busy())
}

func (s *script) head([]string, words) {
	s.do(func(c *channel.Channel, st *channel.Step) {
		if e := c.Head(st); e != nil {
			s.note("repeat %d:%d, base %d", e.Epoch, e.Head, e.Base)
			return
		}
		s.note("nothing to repeat")
	})
}
