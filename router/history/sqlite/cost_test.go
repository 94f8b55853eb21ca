package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

func openForCost(t *testing.T) *Store {
	t.Helper()
	cfg := Default()
	cfg.Path, cfg.Synchronous = filepath.Join(t.TempDir(), "history.db"), Normal
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// cost is how many statements a call runs and how many rows they return.
func (s *Store) cost(call func()) (statements, rows int) {
	count := func(sign int) {
		conns := []*conn{}
		w := <-s.writer
		conns = append(conns, w.conn)
		for range s.cfg.ReadConns {
			r := <-s.readers
			conns = append(conns, r.conn)
			defer func() { s.readers <- r }()
		}
		s.writer <- w
		for _, c := range conns {
			statements += sign * c.statements
			rows += sign * c.rows
		}
	}
	count(-1)
	call()
	count(1)
	return statements, rows
}

// publishOn stores one event on each of many channels.
func publishOn(t *testing.T, s *Store, names []string, timeMS int64) {
	t.Helper()
	queries := make([]history.HeadQuery, len(names))
	for i, name := range names {
		queries[i].Channel = name
	}
	heads, err := s.Heads(context.Background(), queries)
	if err != nil {
		t.Fatal(err)
	}
	runs := make([]history.Run, len(names))
	for i, h := range heads {
		runs[i] = history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{{Offset: h.Offset + 1, TimeMS: timeMS, Data: []byte("1")}}}
	}
	if _, err := s.Append(context.Background(), runs); err != nil {
		t.Fatal(err)
	}
}

// What retention looks at grows with what was published and with what must go,
// not with the number of channels.
func TestTrimCostsNothingForQuietChannels(t *testing.T) {
	const channels, busy = 1_200, 10
	s := openForCost(t)
	names := make([]string, channels)
	for i := range names {
		names[i] = fmt.Sprintf("chat:%d", i)
	}
	now := time.Now().UnixMilli()
	for range 3 {
		publishOn(t, s, names, now)
	}
	trim := func(limit int) (n int) {
		n, err := s.Trim(context.Background(), []history.Retention{{Namespace: "chat", Size: 3, TTL: time.Hour}, {Namespace: "quiet", TTL: time.Minute}}, time.Hour, limit)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, rows := s.cost(func() { trim(1000) }); rows < channels {
		t.Errorf("the first look at new rules looked at %d rows of %d channels", rows, channels)
	}
	if statements, rows := s.cost(func() { trim(1000) }); statements > 20 || rows > 10 {
		t.Errorf("a round with nothing to do ran %d statements over %d rows", statements, rows)
	}
	for range 4 {
		publishOn(t, s, names[:busy], now)
	}
	gone := 0
	statements, rows := s.cost(func() { gone = trim(1000) })
	if gone != 4*busy {
		t.Errorf("%d went, want %d", gone, 4*busy)
	}
	if statements > 60*busy || rows > 60*busy {
		t.Errorf("a round for %d channels ran %d statements over %d rows", busy, statements, rows)
	}
	// by age, with most channels far from it
	publishOn(t, s, []string{"quiet:a", "quiet:b"}, now-2*time.Minute.Milliseconds())
	if statements, rows = s.cost(func() { gone = trim(1000) }); gone != 2 || statements > 60 || rows > 40 {
		t.Errorf("%d went by age, with %d statements over %d rows", gone, statements, rows)
	}
}

// A limit costs no second look at all that comes before.
func TestTrimGoesOnWhereItStopped(t *testing.T) {
	s := openForCost(t)
	names := make([]string, walkPage+200)
	for i := range names {
		names[i] = fmt.Sprintf("chat:%d", i)
	}
	for range 2 {
		publishOn(t, s, names, time.Now().UnixMilli())
	}
	calls := 0
	_, rows := s.cost(func() {
		for n := 100; n == 100; calls++ {
			var err error
			if n, err = s.Trim(context.Background(), []history.Retention{{Namespace: "chat", Size: 1}}, 0, 100); err != nil {
				t.Fatal(err)
			}
		}
	})
	// each call looks at one page again, and an event that goes costs a few rows
	if most := calls*(walkPage+20) + len(names)*8; rows > most {
		t.Errorf("%d calls looked at %d rows, want at most %d", calls, rows, most)
	}
}

// The statements that run often find their rows by a key.
func TestStatementsUseTheirIndexes(t *testing.T) {
	s := openForCost(t)
	w := <-s.writer
	defer func() { s.writer <- w }()
	p := preparer{conn: w.conn}
	for _, often := range []*stmt{
		w.first, w.move, w.fill, w.top, w.byName, w.byID, w.repeat, w.event, w.link, w.marked, w.due, w.oldKey, w.walk, w.newest,
		w.scan, w.sized, w.trimmer.forget, w.trimmer.unmark, w.trimmer.began, w.trimmer.keys,
	} {
		plan := p.prepare("EXPLAIN QUERY PLAN " + often.text)
		if p.err != nil {
			t.Fatal(p.err)
		}
		if err := plan.each(func(row []value) bool {
			if step := row[3].(string); strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", often.text, step)
			}
			return true
		}, make([]any, 9)...); err != nil {
			t.Fatal(err)
		}
	}
}
