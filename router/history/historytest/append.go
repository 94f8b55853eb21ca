package historytest

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/spillway-io/spillway/router/history"
)

func newChannelBeginsAtZero(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:new", history.Key{Scope: "b", Key: "k"})
	if h.Epoch == 0 || h.Offset != 0 || h.Repeats != nil {
		t.Fatalf("new channel: %+v", h)
	}
	if again := mustHead(t, s, "chat:new"); again.Epoch != h.Epoch || again.Offset != 0 {
		t.Fatalf("asked again: %+v, first %+v", again, h)
	}
	if other := mustHead(t, s, "chat:other"); other.Epoch == h.Epoch {
		t.Fatalf("two channels made apart have one epoch: %d", h.Epoch)
	}
	if p, events := all(t, s, "chat:new"); !p.Exists || p.First != 1 || len(events) != 0 {
		t.Fatalf("page of a new channel: %+v", p)
	}
}

func offsetsAreContiguous(t *testing.T, s history.Store) {
	random := seeded(t)
	h := mustHead(t, s, "chat:a")
	for h.Offset < 60 {
		run := runAfter(h, 1+random.IntN(5))
		mustStore(t, s, run)
		next := mustHead(t, s, "chat:a")
		if next.Epoch != h.Epoch || next.Offset != run.NewHead() {
			t.Fatalf("after a run of %d behind %+v the head is %+v", len(run.Events), h, next)
		}
		h = next
	}
	p, events := all(t, s, "chat:a")
	if p.First != 1 || p.Head != h.Offset || events[0].Offset != 1 || events[len(events)-1].Offset != h.Offset {
		t.Fatalf("first %d, head %d, %d events", p.First, p.Head, len(events))
	}
}

func everyFieldComesBack(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	events := []history.Event{
		{Offset: 1, TimeMS: 1_700_000_000_123, Data: []byte(`{"a":9007199254740991}`), From: "ann", Meta: []byte(`{"k":"v"}`), Key: "x", Scope: "u:ann"},
		{Offset: 2, TimeMS: 1_700_000_000_124, Data: []byte("\x00\x01\xff\x00"), Binary: true},
		{Offset: 3, TimeMS: 0, Data: []byte{}},
		{Offset: 4, TimeMS: 1_700_000_000_122, Data: []byte(`"日本語 \u0000"`), From: "日本"},
		{Offset: 5, TimeMS: 1, Data: bytes.Repeat([]byte("\x00\xfe"), 300_000), Binary: true},
	}
	mustStore(t, s, history.Run{Channel: h.Channel, Epoch: h.Epoch, Events: events})
	_, got := all(t, s, "chat:a")
	for i := range events {
		want := events[i]
		got[i].Key, got[i].Scope, want.Key, want.Scope = "", "", "", "" // stores need not give these back
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("event %d came back as %.300s, want %.300s", i, fmt.Sprintf("%+v", got[i]), fmt.Sprintf("%+v", want))
		}
	}
	mustStore(t, s, history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: 5, Events: []history.Event{{Offset: 6, Meta: []byte{}}}})
	p := mustRead(t, s, history.Range{Channel: "chat:a", After: 5, Limit: 1})[0]
	if p.Events[0].Data == nil || p.Events[0].Meta != nil {
		t.Errorf("nil data and empty meta came back as %v, %v; want empty and nil", p.Events[0].Data, p.Events[0].Meta)
	}
}

func slicesAreTheCallers(t *testing.T, s history.Store) {
	run := runAfter(mustHead(t, s, "chat:a"), 1)
	run.Events[0].Data = []byte("original")
	run.Events[0].Meta = []byte("meta")
	mustStore(t, s, run)
	copy(run.Events[0].Data, "spoilt!!")
	copy(run.Events[0].Meta, "!!!!")
	for range 2 {
		_, events := all(t, s, "chat:a")
		if string(events[0].Data) != "original" || string(events[0].Meta) != "meta" {
			t.Fatalf("read %q, %q", events[0].Data, events[0].Meta)
		}
		copy(events[0].Data, "spoilt!!")
		copy(events[0].Meta, "!!!!")
	}
}

func lostRunHindersNoOther(t *testing.T, s history.Store) {
	a, b, c := mustHead(t, s, "chat:a"), mustHead(t, s, "chat:b"), mustHead(t, s, "chat:c")
	mustStore(t, s, runAfter(b, 2)) // somebody else was faster
	foreign := runAfter(c, 1)
	foreign.Epoch++
	outcomes := mustAppend(t, s, runAfter(a, 3), runAfter(b, 3), foreign)
	want := []history.Outcome{history.Stored, history.Lost, history.Lost}
	if !reflect.DeepEqual(outcomes, want) {
		t.Fatalf("outcomes %v, want %v", outcomes, want)
	}
	for channel, n := range map[string]int{"chat:a": 3, "chat:b": 2, "chat:c": 0} {
		if p, events := all(t, s, channel); len(events) != n || p.Head != uint64(n) {
			t.Errorf("%s: head %d, %d events, want %d", channel, p.Head, len(events), n)
		}
	}
	ahead := runAfter(history.Head{Channel: "chat:a", Epoch: a.Epoch, Offset: 7}, 1)
	if outcomes := mustAppend(t, s, ahead); outcomes[0] != history.Lost {
		t.Fatalf("a run ahead of the head: %v", outcomes[0])
	}
}

func runForUnknownChannelIsLost(t *testing.T, s history.Store) {
	for _, epoch := range []uint64{0, 1, 1<<64 - 1} {
		outcomes := mustAppend(t, s, runAfter(history.Head{Channel: "chat:none", Epoch: epoch}, 1))
		if outcomes[0] != history.Lost {
			t.Fatalf("epoch %d: %v, want lost", epoch, outcomes[0])
		}
	}
	if p := mustRead(t, s, history.Range{Channel: "chat:none", Limit: 1})[0]; p.Exists {
		t.Fatal("a lost run made a row")
	}
}

func oneOfTwoRuns(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	stored := 0
	for _, outcome := range mustAppend(t, s, runAfter(h, 2), runAfter(h, 2)) {
		if outcome == history.Stored {
			stored++
		}
	}
	if _, events := all(t, s, "chat:a"); stored != 1 || len(events) != 2 {
		t.Fatalf("%d runs stored, %d events; want 1, 2", stored, len(events))
	}
}

// bigBatch also meets every plan that a database may have cached for small ones.
func bigBatch(t *testing.T, s history.Store) {
	const channels = 1_500
	queries := make([]history.HeadQuery, channels)
	for i := range queries {
		queries[i].Channel = fmt.Sprintf("chat:%d", i)
	}
	for round := range 8 {
		heads, err := s.Heads(callContext(t), queries)
		if err != nil {
			t.Fatal(err)
		}
		n := channels
		if round < 6 {
			n = 2
		}
		var runs []history.Run
		for _, h := range heads[:n] {
			runs = append(runs, runAfter(h, 1+round%2))
		}
		mustStore(t, s, runs...)
	}
	if h := mustHead(t, s, "chat:1499"); h.Offset != 3 {
		t.Fatalf("head %d, want 3", h.Offset)
	}
}

func refusedBatchLeavesNothing(t *testing.T, s history.Store) {
	a, b := mustHead(t, s, "chat:a"), mustHead(t, s, "chat:b")
	first := runAfter(a, 1)
	first.Events[0].Key, first.Events[0].Scope = "k", "u:ann"
	mustStore(t, s, first)
	repeat := runAfter(mustHead(t, s, "chat:a"), 3)
	repeat.Events[1].Key, repeat.Events[1].Scope = "k", "u:ann"
	twice := runAfter(b, 2)
	for i := range twice.Events {
		twice.Events[i].Key, twice.Events[i].Scope = "t", "b"
	}
	for _, batch := range [][]history.Run{{runAfter(b, 2), repeat}, {repeat, runAfter(b, 2)}, {twice}} {
		outcomes, err := s.Append(callContext(t), batch)
		wantRefused(t, err)
		if outcomes != nil {
			t.Fatalf("outcomes %v beside an error", outcomes)
		}
	}
	if h := mustHead(t, s, "chat:a"); h.Offset != 1 {
		t.Errorf("head %d after a refusal, want 1", h.Offset)
	}
	if _, events := all(t, s, "chat:b"); len(events) != 0 {
		t.Errorf("%d events of a refused batch are there", len(events))
	}
	mustStore(t, s, runAfter(b, 2)) // the store goes on
}

func malformedRunIsRefused(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	hole := runAfter(h, 3)
	hole.Events[2].Offset++
	off := runAfter(h, 1)
	off.Events[0].Offset = 2
	last := runAfter(history.Head{Channel: "chat:a", Epoch: h.Epoch, Offset: history.MaxOffset}, 1)
	beyond := runAfter(history.Head{Channel: "chat:a", Epoch: h.Epoch, Offset: 1<<64 - 2}, 1)
	for name, run := range map[string]history.Run{
		"hole": hole, "offset is not behind head": off, "past 2^53-1": last, "near 2^64": beyond,
		"no events": {Channel: "chat:a", Epoch: h.Epoch}, "no name": runAfter(history.Head{Epoch: h.Epoch}, 1),
	} {
		_, err := s.Append(callContext(t), []history.Run{runAfter(mustHead(t, s, "chat:b"), 1), run})
		if err == nil {
			t.Fatalf("%s: stored", name)
		}
		wantRefused(t, err)
	}
	if h := mustHead(t, s, "chat:b"); h.Offset != 0 {
		t.Fatalf("a run beside a malformed one was stored")
	}
}

func hugeOffsets(t *testing.T, s history.Store) {
	// Heads cannot be moved so far by appending, so this much is shown: what the
	// bounds of reads and the beliefs of writers may be, and times.
	h := mustHead(t, s, "chat:a")
	run := runAfter(h, 2)
	run.Events[0].TimeMS, run.Events[1].TimeMS = 1<<53-1, -1
	mustStore(t, s, run)
	near := runAfter(history.Head{Channel: "chat:a", Epoch: h.Epoch, Offset: history.MaxOffset - 2}, 2)
	if outcomes := mustAppend(t, s, near); outcomes[0] != history.Lost {
		t.Fatalf("a run up to 2^53-1 behind head 2: %v", outcomes[0])
	}
	_, events := all(t, s, "chat:a")
	if events[0].TimeMS != 1<<53-1 || events[1].TimeMS != -1 {
		t.Fatalf("times came back as %d, %d", events[0].TimeMS, events[1].TimeMS)
	}
}

func unicodeNames(t *testing.T, s history.Store) {
	names := []string{
		strings.Repeat("é", 127) + "x",          // 255 bytes
		"chat:" + strings.Repeat("日", 83) + "z", // 255 bytes
		"chat:😀", "chat:e\u0301", "chat:\u00e9", // the last two look alike
		"chat:A", "chat:a", "chat:a ", "chat:%", "chat:_", "chat:'", `chat:"`, `chat:\`, ":", ":x", "chat:", "é:é",
	}
	var queries []history.HeadQuery
	for _, name := range names {
		queries = append(queries, history.HeadQuery{Channel: name})
	}
	heads, err := s.Heads(callContext(t), queries)
	if err != nil {
		t.Fatal(err)
	}
	var runs []history.Run
	for i, h := range heads {
		run := runAfter(h, 1)
		run.Events[0].Data = []byte(names[i])
		runs = append(runs, run)
	}
	mustStore(t, s, runs...)
	for _, name := range names {
		if _, events := all(t, s, name); len(events) != 1 || string(events[0].Data) != name {
			t.Errorf("channel %q holds %v", name, events)
		}
	}
}

func emptyCalls(t *testing.T, s history.Store) {
	if outcomes := mustAppend(t, s); len(outcomes) != 0 {
		t.Errorf("outcomes %v of nothing", outcomes)
	}
	if heads, err := s.Heads(callContext(t), nil); err != nil || len(heads) != 0 {
		t.Errorf("heads of nothing: %v, %v", heads, err)
	}
	if pages := mustRead(t, s); len(pages) != 0 {
		t.Errorf("pages %v of nothing", pages)
	}
	if n, err := s.Trim(callContext(t), nil, 0, 1); err != nil || n != 0 {
		t.Errorf("trim of nothing: %d, %v", n, err)
	}
}
