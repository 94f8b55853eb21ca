package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// fill stores n events of now in each channel.
func (f *fixture) fill(n int, channels ...string) {
	f.t.Helper()
	for len(channels) > 0 {
		some := channels[:min(1000, len(channels))]
		channels = channels[len(some):]
		queries := make([]history.HeadQuery, len(some))
		for i, channel := range some {
			queries[i].Channel = channel
		}
		heads, err := f.store.Heads(f.ctx, queries)
		if err != nil {
			f.t.Fatal(err)
		}
		runs := make([]history.Run, len(heads))
		for i, h := range heads {
			runs[i] = history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset}
			for j := range n {
				runs[i].Events = append(runs[i].Events, history.Event{Offset: h.Offset + 1 + uint64(j), TimeMS: time.Now().UnixMilli(), Data: []byte("1")})
			}
		}
		outcomes, err := f.store.Append(f.ctx, runs)
		if err != nil {
			f.t.Fatal(err)
		}
		for i, outcome := range outcomes {
			if outcome != history.Stored {
				f.t.Fatalf("%s: %v", runs[i].Channel, outcome)
			}
		}
	}
}

func (f *fixture) trim(want int, rules ...history.Retention) {
	f.t.Helper()
	n, err := f.store.Trim(f.ctx, rules, 0, 1_000_000)
	if err != nil {
		f.t.Fatal(err)
	}
	if n != want {
		f.t.Errorf("%d went, want %d", n, want)
	}
}

// count is the answer to a query of one number.
func (f *fixture) count(sql string, args ...any) int {
	f.t.Helper()
	var n int
	if err := f.watch.QueryRow(f.ctx, sql, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *fixture) listed() int {
	return f.count("SELECT count(*) FROM history_looks WHERE due_ms <= $1", time.Now().UnixMilli())
}

func names(format string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, i)
	}
	return names
}

// A round of retention costs what has to go, not the channels that there are.
func TestRetentionLooksOnlyAtWhatMayHaveToGo(t *testing.T) {
	f := newFixture(t)
	rule := history.Retention{Namespace: "chat", Size: 16, TTL: time.Hour}
	f.fill(16, names("chat:%d", 100)...)
	f.trim(0, rule)
	if n := f.listed(); n != 0 {
		t.Errorf("%d channels are due after a round", n)
	}
	f.fill(2, names("chat:%d", 10)...) // an eighth above the size is not looked at
	if n := f.listed(); n != 0 {
		t.Errorf("%d channels are due that may wait", n)
	}
	f.fill(1, names("chat:%d", 5)...)
	if n := f.listed(); n != 5 {
		t.Errorf("%d channels are due, want the 5 that grew", n)
	}
	f.trim(5*3, rule)
	if n := f.count("SELECT count(*) FROM history_looks WHERE due_ms <= $1", time.Now().Add(2*time.Hour).UnixMilli()); n != 100 {
		t.Errorf("%d of 100 channels come of age", n)
	}
}

// A rule that changes reaches channels that nobody publishes to any more, all of
// them, and those of other namespaces are left alone.
func TestNewRuleReachesEveryChannel(t *testing.T) {
	f := newFixture(t)
	chat, user := names("chat:%d", 1200), names("user:%d", 30)
	bare := []string{"a", "news", "zzz", "chat", "chat;x", ":x"}
	f.fill(3, append(append(chat, user...), bare...)...)
	f.fill(3, "chat:") // the first name that a namespace can have
	rules := []history.Retention{{Namespace: "chat", Size: 3}, {Namespace: "user", Size: 3}, {Namespace: "", Size: 3}}
	f.trim(0, rules...)
	rules[0].Size = 1
	f.trim(2*1201, rules...)
	rules[1].TTL, rules[2].Size = time.Hour, 2
	f.trim(len(bare), rules...)
	f.trim(0, rules[1:]...)
	rules[0].Size = 1 // as it was before it was taken away
	f.fill(1, "chat:7")
	f.trim(1, rules...)
	if n := f.count("SELECT count(*) FROM history_rules WHERE walked IS NOT NULL"); n != 0 {
		t.Errorf("%d walks are not at their end", n)
	}
}

// Retention waits for no append: a channel that is locked stays due.
func TestRetentionPassesOverBusyChannels(t *testing.T) {
	f := newFixture(t)
	rule := history.Retention{Namespace: "chat", Size: 2}
	f.trim(0, rule)
	f.fill(3, "chat:a", "chat:b")
	f.exec("BEGIN")
	f.exec("UPDATE history_channels SET head = head WHERE channel = 'chat:a'")
	f.trim(2, rule) // what must go goes; when to look again is another matter
	if n := f.listed(); n != 1 {
		t.Errorf("%d channels are due, want the busy one", n)
	}
	f.exec("COMMIT")
	f.trim(0, rule)
	if n := f.listed(); n != 0 {
		t.Errorf("%d channels are due", n)
	}
}

// What is appended between the look and its settling is not overlooked.
func TestRetentionOverlooksNoAppend(t *testing.T) {
	f := newFixture(t)
	rule := []history.Retention{{Namespace: "chat", Size: 1}}
	for round := range 40 {
		done := make(chan struct{})
		// Owns the channels' heads; ends after its rounds; waited for below.
		go func() {
			defer close(done)
			for range 3 {
				f.fill(1, names("chat:%d", 10)...)
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			if _, err := f.store.Trim(f.ctx, rule, 0, 1_000_000); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.count("SELECT count(*) FROM history_events"); n != 10 {
			t.Fatalf("round %d: %d events are left of 10 channels of size 1", round, n)
		}
	}
}
