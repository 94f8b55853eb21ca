package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestChannelNames(t *testing.T) {
	good := []string{"a", "chat:room-7", "a*b", "a>b", "a.b", "with space", "ключ", strings.Repeat("x", 255), "\uFFFD", ":", "%2E"}
	for _, name := range good {
		if err := CheckChannel(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	bad := []string{"", strings.Repeat("x", 256), "a\nb", "a\r", "\x00", "a\x7f", "a\u0085", "\xff", "a\xc3", "\xed\xa0\x80"}
	for _, name := range bad {
		if CheckChannel(name) == nil {
			t.Errorf("%q passed", name)
		}
	}
}

func TestSubjectsAreSafeAndDistinct(t *testing.T) {
	want := map[string]string{
		"chat:room-7": "sw.ch.chat:room-7",
		"a.*>b c":     "sw.ch.a%2E%2A%3Eb%20c",
		"a%2E":        "sw.ch.a%252E",
		"$SYS":        "sw.ch.%24SYS",
	}
	for channel, subject := range want {
		if got := Subject("sw", channel); got != subject {
			t.Errorf("%q: %s, want %s", channel, got, subject)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("chat:a", "chat.a")
	f.Add("%2E", ".")
	f.Fuzz(func(t *testing.T, a, b string) {
		if CheckChannel(a) != nil || CheckChannel(b) != nil {
			return
		}
		sa, sb := Subject("p", a), Subject("p", b)
		if (a == b) != (sa == sb) {
			t.Fatalf("%q and %q: %s and %s", a, b, sa, sb)
		}
		if rest := strings.TrimPrefix(sa, "p.ch."); rest == "" || strings.ContainsAny(rest, ".*> \t\r\n") {
			t.Fatalf("%q: unsafe subject %q", a, sa)
		}
	})
}

func TestEpochs(t *testing.T) {
	for _, e := range []uint64{1, 35, 36, 1 << 60} {
		if got, ok := ParseEpoch(FormatEpoch(e)); !ok || got != e {
			t.Errorf("%d came back as %d, %v", e, got, ok)
		}
	}
	for _, s := range []string{"", "0", "A", "01", "-1", "x y", strings.Repeat("z", 30)} {
		if _, ok := ParseEpoch(s); ok {
			t.Errorf("%q is no epoch of ours", s)
		}
	}
}

// The commands of PROTOCOL.md, decoded and written again.
var commands = []string{
	`{"type":"connect","id":1}`,
	`{"type":"connect","id":1,"token":"t","attempt":3,"subscriptions":[{"channel":"a","epoch":"1","offset":9007199254740991},{"channel":"b","last":5}],"client":"x/1"}`,
	`{"type":"subscribe","id":4294967295,"channel":"chat:room-7"}`,
	`{"type":"subscribe","id":2,"subscriptions":[{"channel":"a","offset":0}]}`,
	`{"type":"unsubscribe","id":3,"channel":"a"}`,
	`{"type":"publish","id":4,"channel":"a","data":{"n":1.0e5},"meta":{"k":"v"},"key":"k1"}`,
	`{"type":"publish","id":4,"channel":"a","data":null}`,
	`{"type":"publish","id":4,"channel":"a","data_b64":"AP8="}`,
	`{"type":"history","id":5,"channel":"a","epoch":"2","offset":7,"limit":10,"reverse":true}`,
	`{"type":"presence","id":6,"channel":"a","counts_only":true}`,
	`{"type":"refresh","id":7,"token":"t"}`,
	`{"type":"ping","id":8}`,
}

func TestCommandsRoundTrip(t *testing.T) {
	for _, line := range commands {
		f, problem := DecodeClient([]byte(line))
		if problem != nil {
			t.Errorf("%s: %v", line, problem)
			continue
		}
		if got := string(AppendClient(nil, f)); got != line {
			t.Errorf("%s\ncame back as\n%s", line, got)
		}
	}
}

func TestBadCommandsAreNamed(t *testing.T) {
	for line, want := range map[string]struct {
		id   uint32
		text string
	}{
		`{`:                               {0, "not JSON"},
		`[]`:                              {0, "a frame is a JSON object"},
		`{"type":"ping"}`:                 {0, "id is missing"},
		`{"id":4}`:                        {4, "type is missing"},
		`{"type":"dance","id":4}`:         {4, `type: "dance" is unknown`},
		`{"type":"ping","id":0}`:          {0, "id: must be"},
		`{"type":"ping","id":-1}`:         {0, "id"},
		`{"type":"ping","id":1.5}`:        {0, "id"},
		`{"type":"ping","id":1e3}`:        {0, "id"},
		`{"type":"ping","id":"1"}`:        {0, "id"},
		`{"type":"ping","id":4294967296}`: {0, "id: must be"},
		`{"type":"publish","id":4,"channel":"a"}`:                                    {4, "data is missing"},
		`{"type":"publish","id":4,"channel":"a","data":1,"data_b64":"AA=="}`:         {4, "only one"},
		`{"type":"publish","id":4,"channel":"a","data_b64":"!"}`:                     {4, "data_b64"},
		`{"type":"publish","id":4,"channel":"","data":1}`:                            {4, "channel: must not be empty"},
		`{"type":"publish","id":4,"channel":"a\nb","data":1}`:                        {4, "control character"},
		`{"type":"publish","id":4,"channel":"a\ud800","data":1}`:                     {4, "escape"},
		`{"type":"subscribe","id":4,"subscriptions":[]}`:                             {4, "subscriptions"},
		`{"type":"subscribe","id":4,"channel":"a","offset":9007199254740992}`:        {4, "2^53-1"},
		`{"type":"subscribe","id":4,"channel":"a","offset":-1}`:                      {4, "offset"},
		`{"type":"subscribe","id":4,"subscriptions":[{"channel":"a","offset":1.5}]}`: {4, "offset"},
	} {
		_, problem := DecodeClient([]byte(line))
		if problem == nil || problem.ID != want.id || !strings.Contains(problem.Message, want.text) {
			t.Errorf("%s: %+v, want id %d and %q", line, problem, want.id, want.text)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	f, problem := DecodeClient([]byte(`{"type":"ping","id":3,"color":{"deep":[1]}}`))
	if problem != nil || f.Id != 3 || f.GetPing() == nil {
		t.Fatalf("%v %v", f, problem)
	}
}

func ptr[T any](v T) *T { return &v }

func TestServerFramesRoundTrip(t *testing.T) {
	frames := []*clientv1.ServerFrame{
		{Id: 1, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
			Session: "s", Node: "edge-1", Region: "eu", PingIntervalMs: 30000, PongTimeoutMs: 10000, RetryWindowMs: 500,
			MaxFrameBytes: 65536, ExpiresInMs: ptr(uint64(5)), Subscriptions: []*clientv1.SubscriptionEntry{
				{Channel: "a", Epoch: "1", Offset: 7, Recovered: true},
				{Channel: "b", Pending: true},
				{Channel: "c", Error: &clientv1.Error{Code: clientv1.ErrorCode_ERROR_CODE_FORBIDDEN, Message: "no"}},
				{Channel: "d", Epoch: "1", Offset: MaxOffset, From: ptr(uint64(3)), ReloadAfterMs: ptr(uint32(9))},
			}}}},
		{Id: 2, Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Single: true,
			Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "a", Epoch: "1"}}}}},
		{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: "a", Offset: 3, Data: []byte(`{"a":1}`), TimeMs: 4, From: "u", Meta: map[string]string{"k": "v\n"}}}},
		{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: "a", Offset: 3, Data: []byte{0, 255}, Binary: true}}},
		{Id: 3, Frame: &clientv1.ServerFrame_Published{Published: &clientv1.Published{Channel: "a", Epoch: "1", Offset: 8}}},
		{Id: 4, Frame: &clientv1.ServerFrame_History{History: &clientv1.HistoryResult{Channel: "a", Epoch: "1", More: true,
			Events: []*clientv1.Event{{Offset: 1, Data: []byte(`1`), TimeMs: 2}}}}},
		{Id: 5, Frame: &clientv1.ServerFrame_Refreshed{Refreshed: &clientv1.Refreshed{ExpiresInMs: ptr(uint64(1))}}},
		{Frame: &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{Channel: "a", Epoch: "2", Offset: 5, Reason: "history", ReloadAfterMs: 6}}},
		{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{Reason: "drain", AfterMs: 1, DeadlineMs: 2, Url: "ws://x/v1/ws"}}},
		{Frame: &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{RetryAfterMs: 1, Scope: "node"}}},
		{Id: 6, Frame: &clientv1.ServerFrame_Error{Error: &clientv1.Error{Code: clientv1.ErrorCode_ERROR_CODE_EXPIRED, Message: `"x"`, Temporary: true, RetryAfterMs: ptr(uint32(4)), Close: ptr(uint32(4100))}}},
		{Id: 7, Frame: &clientv1.ServerFrame_Pong{Pong: &clientv1.Pong{RetryWindowMs: 700}}},
		{Id: 8, Frame: &clientv1.ServerFrame_Unsubscribed{Unsubscribed: &clientv1.Unsubscribed{Channel: "a"}}},
		{Id: 9, Frame: &clientv1.ServerFrame_Presence{Presence: &clientv1.PresenceState{Channel: "a", Rev: 1, Count: 1, Members: []*clientv1.PresenceMember{{User: "u", Session: "s", Info: []byte(`{"n":1}`)}},
			Joined: []*clientv1.PresenceMember{}, Left: []*clientv1.PresenceMember{}}}},
	}
	for _, f := range frames {
		line := AppendServer(nil, f)
		if !json.Valid(line) || bytes.ContainsAny(line, "\n\r") {
			t.Fatalf("%s", line)
		}
		got, err := DecodeServer(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !proto.Equal(got, f) {
			t.Errorf("%s\ncame back as\n%v", line, got)
		}
	}
	if f, err := DecodeServer([]byte(`{"type":"later","id":3}`)); err != nil || f.Frame != nil {
		t.Errorf("an unknown type: %v %v", f, err)
	}
}

func TestEventPushDoesNotAllocate(t *testing.T) {
	e := &gatewayv1.BusEvent{Offset: 1 << 52, TimeMs: 5, Data: []byte(`{"x":1}`), From: "u", Meta: []byte(`{"k":"v"}`)}
	buf := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(100, func() { buf = AppendEvent(buf[:0], "chat:room-7", e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	f, err := DecodeServer(buf)
	if err != nil || f.GetEvent().Offset != 1<<52 || f.GetEvent().Meta["k"] != "v" {
		t.Errorf("%s: %v", buf, err)
	}
}

func TestCompactLeavesValuesUntouched(t *testing.T) {
	in := "{ \"big\" : 9007199254740993,\r\n\t\"f\": 1.10e+2, \"s\":\"a\\u0041 \\/ \u2028\" , \"e\":[ ] }"
	want := "{\"big\":9007199254740993,\"f\":1.10e+2,\"s\":\"a\\u0041 \\/ \u2028\",\"e\":[]}"
	got, err := CompactJSON([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "{", "1 2", "nul", "\"\xff\"", strings.Repeat("[", 100_000)} {
		if _, err := CompactJSON([]byte(bad)); err == nil {
			t.Errorf("%.20q passed", bad)
		}
	}
}

func FuzzDecodeClient(f *testing.F) {
	for _, line := range commands {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		frame, problem := DecodeClient(line)
		if problem != nil {
			return
		}
		if frame.Id == 0 || frame.Frame == nil {
			t.Fatalf("%q passed as %v", line, frame)
		}
		again, problem := DecodeClient(AppendClient(nil, frame))
		if problem != nil || !proto.Equal(again, frame) {
			t.Fatalf("%q: %v came back as %v, %v", line, frame, again, problem)
		}
	})
}

func FuzzDecodeServer(f *testing.F) {
	f.Add([]byte(`{"type":"event","channel":"a","offset":1,"data":{},"time_ms":1}`))
	f.Add([]byte(`{"type":"subscribed","subscriptions":[{"channel":"a","pending":true}]}`))
	f.Fuzz(func(t *testing.T, line []byte) { _, _ = DecodeServer(line) })
}

func FuzzCompactJSON(f *testing.F) {
	f.Add([]byte(`{ "a" : [1, 2.50, "x\n"] }`))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := CompactJSON(data)
		if err != nil {
			return
		}
		if bytes.ContainsAny(out, "\n\r") || !json.Valid(out) {
			t.Fatalf("%q gave %q", data, out)
		}
	})
}

func BenchmarkDecodePing(b *testing.B) {
	line := []byte(`{"type":"ping","id":17}`)
	b.ReportAllocs()
	for b.Loop() {
		DecodeClient(line)
	}
}

func BenchmarkDecodeSubscribe(b *testing.B) {
	line := []byte(`{"type":"subscribe","id":17,"channel":"chat:room-7","epoch":"1","offset":12}`)
	b.ReportAllocs()
	for b.Loop() {
		DecodeClient(line)
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	e := &gatewayv1.BusEvent{Offset: 12345, TimeMs: 1764470000000, Data: bytes.Repeat([]byte("x"), 128)}
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendEvent(buf[:0], "chat:room-7", e)
	}
}
