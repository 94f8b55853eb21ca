package feed

import (
	"testing"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// The hand-written decoder agrees with the generated one on everything that is an
// envelope, and never panics on what is not.
func FuzzDecode(f *testing.F) {
	for _, env := range []*gatewayv1.Envelope{
		{Channel: "a", Epoch: 1, Head: 0, Router: "r1"},
		{Channel: "a", Epoch: 2, Head: 7, Base: 5, Router: "r1"},
		{Channel: "chat:room", Epoch: 7, Head: 9, Events: []*gatewayv1.BusEvent{
			{Offset: 8, TimeMs: 3, Data: []byte(`{"a":1}`), From: "ann", Meta: []byte(`{"k":"v"}`)},
			{Offset: 9, Data: []byte{0, 1}, Binary: true},
		}},
		{Epoch: 3},
	} {
		b, err := proto.Marshal(env)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	var e envelope // reused, as in a shard
	f.Fuzz(func(t *testing.T, b []byte) {
		err := e.decode(b)
		want := new(gatewayv1.Envelope)
		if proto.Unmarshal(b, want) != nil {
			return // ours does not check UTF-8, nor what it passes over
		}
		good := want.Channel != "" && want.Epoch != 0
		for _, ev := range want.Events {
			good = good && ev.Offset > 0
		}
		if (err == nil) != good {
			t.Fatalf("error %v for %v", err, want)
		}
		if err != nil {
			return
		}
		if string(e.channel) != want.Channel || e.epoch != want.Epoch || e.head != want.Head || e.base != want.Base || len(e.events) != len(want.Events) {
			t.Fatalf("decoded %s %d:%d %d events of %v", e.channel, e.epoch, e.head, len(e.events), want)
		}
		for i, ev := range want.Events {
			got := e.events[i]
			if got.Offset != ev.Offset || got.TimeMs != ev.TimeMs || string(got.Data) != string(ev.Data) ||
				got.Binary != ev.Binary || got.From != ev.From || string(got.Meta) != string(ev.Meta) {
				t.Fatalf("event %v, want %v", got, ev)
			}
		}
	})
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	b, err := proto.Marshal(&gatewayv1.Envelope{Channel: "chat:room", Epoch: 7, Head: 9, Router: "r1", Events: []*gatewayv1.BusEvent{
		{Offset: 8, TimeMs: 3, Data: []byte(`{"a":1}`)}, {Offset: 9, Data: []byte(`2`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var e envelope
	if n := testing.AllocsPerRun(100, func() {
		if err := e.decode(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
