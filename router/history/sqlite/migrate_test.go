package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// A file of schema 2 keeps everything: events between their bounds, epochs that
// were renewed, keys, and what the sequence has given.
func TestFilesOfTheSchemaBeforeAreTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	schema, err := os.ReadFile("testdata/schema2.sql")
	if err != nil {
		t.Fatal(err)
	}
	conn := beside(t, path)
	exec(t, conn, string(schema))
	channels := []struct {
		name        string
		first, head int
		renewed     int
	}{
		{"chat:a", 1, 300, 0}, {"chat:b", 71, 200, 0}, {"chat:emptied", 41, 40, 0},
		{"chat:new", 1, 0, 0}, {"news", 64, 64, 77}, {"chat:c:d", 1, 1, 0},
	}
	now := time.Now().UnixMilli()
	exec(t, conn, "BEGIN")
	exec(t, conn, "UPDATE counters SET value = 90")
	for i, c := range channels {
		exec(t, conn, "INSERT INTO channels VALUES (?, ?, ?, ?, ?)", c.name, i+1, i+1, c.head, c.renewed)
	}
	for offset := 1; offset <= 300; offset++ { // the channels' events are mixed in the log
		for i, c := range channels {
			if offset >= c.first && offset <= c.head {
				exec(t, conn, "INSERT INTO events (channel_id, epoch, offset, time_ms, binary, sender, meta, data) VALUES (?, ?, ?, ?, ?, 'ann', ?, ?)",
					i+1, i+1, offset, now-int64(300-offset)*1000, offset%2, []byte(`{"m":1}`), fmt.Appendf(nil, "%s %d", c.name, offset))
			}
		}
	}
	exec(t, conn, "INSERT INTO keys VALUES (1, 1, 'b', 'k', 7, ?)", now)
	exec(t, conn, "INSERT INTO keys VALUES (5, 5, 'u:ann', 'k', 64, ?)", now)
	exec(t, conn, "COMMIT")

	s := open(t, path)
	for i, c := range channels {
		epoch := uint64(max(i+1, c.renewed))
		key := history.Key{Scope: map[string]string{"chat:a": "b", "news": "u:ann"}[c.name], Key: "k"}
		heads, err := s.Heads(context.Background(), []history.HeadQuery{{Channel: c.name, Keys: []history.Key{key}}})
		if err != nil {
			t.Fatal(err)
		}
		if h := heads[0]; h.Epoch != epoch || h.Offset != uint64(c.head) || h.Repeats[key] != map[string]uint64{"chat:a": 7, "news": 64}[c.name] {
			t.Errorf("%+v became %+v", c, h)
		}
		for _, reverse := range []bool{false, true} {
			pages, err := s.Read(context.Background(), []history.Range{{Channel: c.name, Limit: 1000, Reverse: reverse}})
			if err != nil {
				t.Fatal(err)
			}
			p := pages[0]
			if p.Epoch != epoch || p.First != uint64(c.first) || p.Head != uint64(c.head) || len(p.Events) != c.head-c.first+1 {
				t.Fatalf("%+v became %d..%d of epoch %d with %d events", c, p.First, p.Head, p.Epoch, len(p.Events))
			}
			for _, e := range p.Events {
				want := history.Event{
					Offset: e.Offset, TimeMS: now - int64(300-e.Offset)*1000, Binary: e.Offset%2 == 1, From: "ann",
					Meta: []byte(`{"m":1}`), Data: fmt.Appendf(nil, "%s %d", c.name, e.Offset),
				}
				if !reflect.DeepEqual(e, want) {
					t.Fatalf("%s: %+v, want %+v", c.name, e, want)
				}
			}
		}
		run := history.Run{Channel: c.name, Epoch: epoch, Head: uint64(c.head), Events: []history.Event{{Offset: uint64(c.head) + 1, Data: []byte("1")}}}
		if outcomes, err := s.Append(context.Background(), []history.Run{run}); err != nil || outcomes[0] != history.Stored {
			t.Errorf("%s: append afterwards: %v, %v", c.name, outcomes, err)
		}
	}
	heads, err := s.Heads(context.Background(), []history.HeadQuery{{Channel: "chat:later"}})
	if err != nil || heads[0].Epoch != 91 {
		t.Errorf("the sequence goes on with %+v, %v; want epoch 91", heads, err)
	}
	// the new events are from 1970; of chat:b the first 30 are over 200 s old, and
	// size takes one more
	n, err := s.Trim(context.Background(), []history.Retention{{Namespace: "chat", Size: 100}, {Namespace: "", Size: 1}}, 0, 10_000)
	if want := 201 + 31 + 1; err != nil || n != want {
		t.Errorf("%d went, %v; want %d", n, err, want)
	}
}
