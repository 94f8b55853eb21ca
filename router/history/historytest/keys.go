package historytest

import (
	"reflect"
	"testing"

	"github.com/spillway-io/spillway/router/history"
)

// keyedRun is one event with a key behind h.
func keyedRun(h history.Head, scope, key string) history.Run {
	run := runAfter(h, 1)
	run.Events[0].Scope, run.Events[0].Key = scope, key
	return run
}

func keysAreFound(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	run := runAfter(h, 4)
	run.Events[1].Scope, run.Events[1].Key = "b", "order-1"
	run.Events[3].Scope, run.Events[3].Key = "u:ann", "日本 ' \" %"
	mustStore(t, s, run)
	known := []history.Key{{Scope: "b", Key: "order-1"}, {Scope: "u:ann", Key: "日本 ' \" %"}}
	got := mustHead(t, s, "chat:a", append(known, history.Key{Scope: "b", Key: "order-2"})...)
	want := map[history.Key]uint64{known[0]: 2, known[1]: 4}
	if got.Offset != 4 || !reflect.DeepEqual(got.Repeats, want) {
		t.Fatalf("head %+v, want repeats %v", got, want)
	}
	if got := mustHead(t, s, "chat:a", history.Key{Scope: "b", Key: "order-2"}); got.Repeats != nil {
		t.Fatalf("repeats %v for an unknown key", got.Repeats)
	}
	heads, err := s.Heads(callContext(t), []history.HeadQuery{
		{Channel: "chat:b", Keys: known}, {Channel: "chat:a", Keys: known[:1]}, {Channel: "chat:c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if heads[0].Repeats != nil || heads[1].Repeats[known[0]] != 2 || heads[2].Channel != "chat:c" || heads[0].Offset != 0 {
		t.Fatalf("heads in one call with new channels: %+v", heads)
	}
}

func lostRunLeavesNoKey(t *testing.T, s history.Store) {
	stale := mustHead(t, s, "chat:a")
	mustStore(t, s, runAfter(stale, 1))
	other := mustHead(t, s, "chat:b")
	outcomes := mustAppend(t, s, keyedRun(stale, "b", "k"), keyedRun(other, "b", "k"))
	if outcomes[0] != history.Lost || outcomes[1] != history.Stored {
		t.Fatalf("outcomes %v", outcomes)
	}
	key := history.Key{Scope: "b", Key: "k"}
	if h := mustHead(t, s, "chat:a", key); h.Repeats != nil {
		t.Fatalf("a lost run left key %v", h.Repeats)
	}
	mustStore(t, s, keyedRun(mustHead(t, s, "chat:a"), "b", "k"))
	if h := mustHead(t, s, "chat:a", key); h.Repeats[key] != 2 {
		t.Fatalf("repeats %v, want offset 2", h.Repeats)
	}
}

func keysAreApart(t *testing.T, s history.Store) {
	for _, channel := range []string{"chat:a", "chat:b"} {
		for i, scope := range []string{"b", "u:b", ""} {
			mustStore(t, s, keyedRun(mustHead(t, s, channel), scope, "k"))
			key := history.Key{Scope: scope, Key: "k"}
			if h := mustHead(t, s, channel, key); h.Repeats[key] != uint64(i+1) {
				t.Fatalf("%s, scope %q: repeats %v, want %d", channel, scope, h.Repeats, i+1)
			}
		}
	}
}
