package historytest

import (
	"reflect"
	"testing"

	"github.com/spillway-io/spillway/router/history"
)

// LastOffsets shows that offsets are exact up to the last one, 2^53-1. No test
// can append so far: setHead moves the head of a channel without events, by the
// database's own means.
func LastOffsets(t *testing.T, s history.Store, setHead func(channel string, head uint64)) {
	h := mustHead(t, s, "chat:a")
	setHead("chat:a", history.MaxOffset-3)
	h.Offset = history.MaxOffset - 3
	if got := mustHead(t, s, "chat:a"); !reflect.DeepEqual(got, h) {
		t.Fatalf("head %+v, want %+v", got, h)
	}
	wantLeft(t, s, "chat:a", h.Offset+1, h.Offset)
	mustStore(t, s, runAfter(h, 3))
	for _, r := range []history.Range{
		{After: 0, Limit: 10}, {After: h.Offset, Limit: 10}, {Reverse: true, Limit: 10}, {Reverse: true, Before: 1 << 60, Limit: 10},
	} {
		r.Channel = "chat:a"
		want := span(history.MaxOffset-2, history.MaxOffset)
		if r.Reverse {
			want = span(history.MaxOffset, history.MaxOffset-2)
		}
		if p := mustRead(t, s, r)[0]; !reflect.DeepEqual(offsetsOf(p.Events), want) || p.More {
			t.Errorf("%+v: %v, more %v", r, offsetsOf(p.Events), p.More)
		}
	}
	h.Offset = history.MaxOffset
	_, err := s.Append(callContext(t), []history.Run{runAfter(h, 1)})
	wantRefused(t, err)
	mustTrim(t, s, 0, 10, history.Retention{Namespace: "chat", Size: 1})
	wantLeft(t, s, "chat:a", history.MaxOffset, history.MaxOffset)
}
