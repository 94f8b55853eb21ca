package historytest

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

const hour = time.Hour

func mustTrim(t testing.TB, s history.Store, keyWindow time.Duration, limit int, rules ...history.Retention) int {
	t.Helper()
	n, err := s.Trim(callContext(t), rules, keyWindow, limit)
	if err != nil {
		t.Fatalf("trim: %v", err)
	}
	return n
}

// aged stores one run whose events are as old as told.
func aged(t testing.TB, s history.Store, channel string, ages ...time.Duration) history.Head {
	t.Helper()
	run := runAfter(mustHead(t, s, channel), len(ages))
	for i, age := range ages {
		run.Events[i].TimeMS = time.Now().Add(-age).UnixMilli()
	}
	mustStore(t, s, run)
	return mustHead(t, s, channel)
}

func wantLeft(t testing.TB, s history.Store, channel string, first, head uint64) {
	t.Helper()
	p, _ := all(t, s, channel)
	if p.First != first || p.Head != head {
		t.Errorf("%s: %d..%d are left, want %d..%d", channel, p.First, p.Head, first, head)
	}
}

func trimBySize(t *testing.T, s history.Store) {
	fill(t, s, "chat:a", 12)
	fill(t, s, "chat:b", 3)
	fill(t, s, "chat:c", 5)
	mustHead(t, s, "chat:empty")
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", Size: 5}); n != 7 {
		t.Errorf("%d went, want 7", n)
	}
	wantLeft(t, s, "chat:a", 8, 12)
	wantLeft(t, s, "chat:b", 1, 3)
	wantLeft(t, s, "chat:c", 1, 5)
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", Size: 5}); n != 0 {
		t.Errorf("%d went the second time", n)
	}
	fill(t, s, "chat:a", 1)
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", Size: 5}); n != 1 {
		t.Errorf("%d went after one more, want 1", n)
	}
}

func trimByAge(t *testing.T, s history.Store) {
	aged(t, s, "chat:a", 5*hour, 4*hour, 3*hour, hour, 0)
	aged(t, s, "chat:mixed", 5*hour, hour, 5*hour, 0) // a clock went back: the prefix alone goes
	aged(t, s, "chat:old", 5*hour, 5*hour)
	aged(t, s, "chat:young", hour, hour)
	aged(t, s, "chat:both", 5*hour, hour, hour, hour)
	rule := history.Retention{Namespace: "chat", TTL: 2 * hour, Size: 5}
	if n := mustTrim(t, s, 0, 1000, rule); n != 3+1+2+0+1 {
		t.Errorf("%d went, want 7", n)
	}
	wantLeft(t, s, "chat:a", 4, 5)
	wantLeft(t, s, "chat:mixed", 2, 4)
	wantLeft(t, s, "chat:old", 3, 2)
	wantLeft(t, s, "chat:young", 1, 2)
	wantLeft(t, s, "chat:both", 2, 4)
	mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", TTL: 2 * hour, Size: 2})
	wantLeft(t, s, "chat:both", 3, 4)
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat"}); n != 0 {
		t.Errorf("%d went without a bound", n)
	}
}

func trimInSteps(t *testing.T, s history.Store) {
	const each, channels, limit = 37, 9, 50
	for i := range channels {
		ages := make([]time.Duration, each)
		for j := range ages {
			ages[j] = 5 * hour
		}
		aged(t, s, fmt.Sprintf("chat:%d", i), ages...)
	}
	fill(t, s, "chat:big", 700)
	rules := []history.Retention{{Namespace: "chat", Size: 100, TTL: 2 * hour}}
	total := 0
	for step := 0; ; step++ {
		n := mustTrim(t, s, 0, limit, rules...)
		if n > limit {
			t.Fatalf("step %d took %d, want at most %d", step, n, limit)
		}
		total += n
		if n < limit {
			break
		}
		if step > 100 {
			t.Fatal("trimming has no end")
		}
	}
	if want := each*channels + 600; total != want {
		t.Errorf("%d went, want %d", total, want)
	}
	wantLeft(t, s, "chat:big", 601, 700)
	wantLeft(t, s, "chat:3", each+1, each)
}

func trimByNamespace(t *testing.T, s history.Store) {
	names := []string{"news", "chat:a", "chat", "chatter:a", "cha:t", ":x", "chat:a:b", "user:1"}
	for _, name := range names {
		fill(t, s, name, 4)
	}
	left := func(want map[string]uint64) {
		t.Helper()
		for _, name := range names {
			first := want[name]
			if first == 0 {
				first = 1
			}
			wantLeft(t, s, name, first, 4)
		}
	}
	mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", Size: 1})
	left(map[string]uint64{"chat:a": 4, "chat:a:b": 4})
	mustTrim(t, s, 0, 1000, history.Retention{Namespace: "", Size: 3}, history.Retention{Namespace: "user", Size: 2})
	left(map[string]uint64{"chat:a": 4, "chat:a:b": 4, "news": 2, "chat": 2, ":x": 2, "user:1": 3})
}

func trimKeepsHeads(t *testing.T, s history.Store) {
	h := aged(t, s, "chat:a", 5*hour, 5*hour, 5*hour)
	mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", TTL: hour})
	wantLeft(t, s, "chat:a", 4, 3)
	if got := mustHead(t, s, "chat:a"); got.Epoch != h.Epoch || got.Offset != 3 {
		t.Fatalf("head %+v after all events went, was %+v", got, h)
	}
	mustStore(t, s, runAfter(h, 2)) // numbering goes on where it was
	wantLeft(t, s, "chat:a", 4, 5)
}

func trimForgetsKeys(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	run := runAfter(h, 6)
	var keys []history.Key
	for i := range run.Events {
		e := &run.Events[i]
		e.Scope, e.Key = "b", fmt.Sprint("k", i)
		e.TimeMS = time.Now().Add(-time.Duration(i) * hour).UnixMilli() // 0 to 5 h old
		keys = append(keys, history.Key{Scope: "b", Key: e.Key})
	}
	mustStore(t, s, run)
	if n := mustTrim(t, s, 0, 1000); n != 0 {
		t.Errorf("%d went with no window", n)
	}
	if n := mustTrim(t, s, 150*time.Minute, 2); n != 2 {
		t.Errorf("%d went, want the limit of 2", n)
	}
	if n := mustTrim(t, s, 150*time.Minute, 1000); n != 1 {
		t.Errorf("%d went, want the third", n)
	}
	got := mustHead(t, s, "chat:a", keys...)
	if len(got.Repeats) != 3 || got.Repeats[keys[0]] != 1 || got.Repeats[keys[2]] != 3 {
		t.Errorf("repeats %v, want those of 0, 1 and 2 h", got.Repeats)
	}
	wantLeft(t, s, "chat:a", 1, 6)
	// keys outlive their events within the window
	mustTrim(t, s, 150*time.Minute, 1000, history.Retention{Namespace: "chat", Size: 1})
	if got := mustHead(t, s, "chat:a", keys[0]); got.Repeats[keys[0]] != 1 {
		t.Errorf("repeats %v after the event went", got.Repeats)
	}
	mustStore(t, s, keyedRun(mustHead(t, s, "chat:a"), "b", keys[5].Key)) // forgotten, so new again
}
