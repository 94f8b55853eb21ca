package sqlite

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

var long = flag.Bool("long", false, "run for many more periods of retention")

// flat is a store whose clock the test moves, with what it has been through.
type flat struct {
	*Store
	t      *testing.T
	now    time.Time
	random *rand.Rand
	heads  map[string]history.Head
	events int // published so far
	chats  int // channels of the busy kind
}

// second publishes n events of 200 B, a tenth of them with keys, over channels
// of three kinds, and moves the clock by a second.
func (f *flat) second(n int) {
	f.now = f.now.Add(time.Second)
	taken := make(map[string]bool)
	var runs []history.Run
	for len(runs) < n {
		name := fmt.Sprintf("chat:%d", f.random.IntN(f.chats)) // by size and age
		switch f.random.IntN(10) {
		case 0:
			name = fmt.Sprintf("rare:%d", f.random.IntN(10*f.chats)) // by age, mostly one event
		case 1, 2, 3:
			name = fmt.Sprintf("news:%d", f.random.IntN(f.chats)) // by size alone
		}
		if taken[name] {
			continue
		}
		taken[name] = true
		h := f.heads[name]
		e := history.Event{Offset: h.Offset + 1, TimeMS: f.now.UnixMilli(), Data: make([]byte, 200), Binary: true}
		if f.random.IntN(10) == 0 {
			e.Scope, e.Key = "b", fmt.Sprint(f.events, "-", len(runs))
		}
		runs = append(runs, history.Run{Channel: name, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{e}})
	}
	f.append(runs)
}

func (f *flat) append(runs []history.Run) {
	f.load(runs)
	outcomes, err := f.Append(context.Background(), runs)
	if err != nil {
		f.t.Fatal(err)
	}
	for i, run := range runs {
		if outcomes[i] != history.Stored {
			f.t.Fatalf("%s: %v", run.Channel, outcomes[i])
		}
		f.heads[run.Channel] = history.Head{Channel: run.Channel, Epoch: run.Epoch, Offset: run.NewHead()}
	}
	f.events += len(runs)
}

func (f *flat) load(runs []history.Run) {
	var queries []history.HeadQuery
	var of []int
	for i := range runs {
		if runs[i].Epoch == 0 {
			queries, of = append(queries, history.HeadQuery{Channel: runs[i].Channel}), append(of, i)
		}
	}
	heads, err := f.Heads(context.Background(), queries)
	if err != nil {
		f.t.Fatal(err)
	}
	for i, h := range heads {
		runs[of[i]].Epoch = h.Epoch
	}
}

// trim is a round of retention as the router runs it.
func (f *flat) trim() {
	rules := []history.Retention{
		{Namespace: "chat", Size: 20, TTL: time.Minute}, {Namespace: "rare", TTL: time.Minute}, {Namespace: "news", Size: 20},
	}
	for n := 1000; n == 1000; {
		var err error
		if n, err = f.Trim(context.Background(), rules, time.Minute, 1000); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *flat) count(table string) (n int64) {
	f.t.Helper()
	err := f.read(context.Background(), func(r *reader) error {
		p := preparer{conn: r.conn}
		s := p.prepare("SELECT count(*) FROM " + table)
		if p.err != nil {
			return p.err
		}
		var err error
		n, err = number(s)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// bytes of the file once its log of writes has been brought to it.
func (f *flat) bytes() (n int64) {
	f.t.Helper()
	err := f.read(context.Background(), func(r *reader) error {
		p := preparer{conn: r.conn}
		s := p.prepare("PRAGMA page_count")
		if p.err != nil {
			return p.err
		}
		pages, err := number(s)
		n = pages * pageBytes
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// Over many periods of retention the file stays as large as it was after the
// first ones: what is deleted makes room for what comes. With -long two hundred
// times as many events.
func TestFileStaysFlatOverManyPeriods(t *testing.T) {
	periods, perSecond, chats := 6, 20, 20
	if *long {
		periods, perSecond, chats = 25, 1_000, 1_000
	}
	cfg := Default()
	cfg.Path, cfg.Synchronous = filepath.Join(t.TempDir(), "history.db"), Normal
	f := &flat{t: t, now: time.Now(), random: rand.New(rand.NewPCG(1, 2)), heads: make(map[string]history.Head), chats: chats}
	cfg.Now = func() time.Time { return f.now }
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f.Store = s

	var steady int64
	for period := range periods {
		for second := range 60 {
			f.second(perSecond)
			if second%30 == 29 {
				f.trim()
			}
		}
		live, channels := f.count("log"), f.count("heads")
		size := f.bytes()
		t.Logf("period %d: %d events published, %d stored, %d keys, %d channels, file %d KiB, %.0f B an event", period+1,
			f.events, live, f.count("repeats"), channels, size>>10, float64(size)/float64(live))
		if period == periods/2-1 {
			steady = size
		}
		if most := steady + steady/10; steady > 0 && size > most {
			t.Fatalf("the file has %d KiB after %d periods, %d after %d", size>>10, period+1, steady>>10, periods/2)
		}
	}
}

// Channels with ever new names, each used once, leave nothing behind: rows, names and
// the file stay as they were after the first periods.
func TestNewChannelsForEverLeaveTheFileFlat(t *testing.T) {
	periods, perSecond := 8, 20
	if *long {
		periods, perSecond = 40, 1_000
	}
	cfg := Default()
	cfg.Path, cfg.Synchronous = filepath.Join(t.TempDir(), "history.db"), Normal
	f := &flat{t: t, now: time.Now(), heads: make(map[string]history.Head)}
	cfg.Now = func() time.Time { return f.now }
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f.Store = s
	var steady int64
	for period := range periods {
		for range 60 {
			f.now = f.now.Add(time.Second)
			runs := make([]history.Run, perSecond)
			for i := range runs {
				runs[i] = history.Run{Channel: fmt.Sprintf("rare:%d-%d", f.events, i), Events: []history.Event{
					{Offset: 1, TimeMS: f.now.UnixMilli(), Data: make([]byte, 200), Binary: true, Scope: "b", Key: "k"},
				}}
			}
			f.append(runs)
		}
		f.trim()
		for n := 1000; n == 1000; {
			if n, err = s.Forget(context.Background(), time.Minute, 1000); err != nil {
				t.Fatal(err)
			}
		}
		rows, names, size := f.count("heads"), f.count("names"), f.bytes()
		t.Logf("period %d: %d channels were used, %d rows, %d names, file %d KiB", period+1, f.events, rows, names, size>>10)
		if rows != names || rows > int64(4*60*perSecond) {
			t.Fatalf("%d rows and %d names after %d channels, of which %d are of the last periods", rows, names, f.events, 3*60*perSecond)
		}
		if period == 4 {
			steady = size
		}
		if steady > 0 && size > steady+steady/10 {
			t.Fatalf("the file has %d KiB after %d periods, it had %d", size>>10, period+1, steady>>10)
		}
	}
}

// An event of 200 B takes some 30 B more in the file, its part of marks and free
// room in pages included.
func TestEventsTakeLittleMoreThanTheirData(t *testing.T) {
	s := openForCost(t)
	f := &flat{Store: s, t: t, now: time.Now(), random: rand.New(rand.NewPCG(1, 2)), heads: make(map[string]history.Head)}
	const events = 4_000
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("chat:%d", i)
	}
	for f.events < events {
		runs := make([]history.Run, len(names))
		for i, name := range names {
			h := f.heads[name]
			runs[i] = history.Run{Channel: name, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
				{Offset: h.Offset + 1, TimeMS: f.now.UnixMilli(), Data: make([]byte, 200), Binary: true},
			}}
		}
		f.append(runs)
	}
	each := float64(f.bytes()) / float64(f.events)
	t.Logf("%.1f B an event", each)
	if each > 250 {
		t.Errorf("%.1f B an event of 200 B, want at most 250", each)
	}
}
