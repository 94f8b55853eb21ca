package wire

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

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
		{Id: 9, Frame: &clientv1.ServerFrame_Presence{Presence: &clientv1.PresenceState{Channel: "a", Rev: 1, Count: 1, Members: []*clientv1.PresenceMember{{User: "u", Session: "s", Info: []byte(`{"n":1}`)}}}}},
		{Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "a", Epoch: "1", Offset: 4, Pending: true}}}}},
		{Frame: &clientv1.ServerFrame_Unsubscribed{Unsubscribed: &clientv1.Unsubscribed{Channel: "a", Error: &clientv1.Error{Code: clientv1.ErrorCode_ERROR_CODE_REVOKED}}}},
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

// What other SDKs read must not move by accident.
func TestServerFramesByteForByte(t *testing.T) {
	for want, f := range map[string]*clientv1.ServerFrame{
		`{"type":"subscribed","id":2,"channel":"a","epoch":"z","offset":0,"recovered":false}`: {Id: 2, Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{
			Single: true, Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "a", Epoch: "z"}}}}},
		`{"type":"subscribed","subscriptions":[{"channel":"a","pending":true}]}`: {Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{
			Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "a", Pending: true}}}}},
		`{"type":"subscribed","subscriptions":[{"channel":"a","error":{"code":"forbidden","message":"","temporary":false}}]}`: {Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{
			Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "a", Error: &clientv1.Error{Code: clientv1.ErrorCode_ERROR_CODE_FORBIDDEN}}}}}},
		`{"type":"pong","id":3}`: {Id: 3, Frame: &clientv1.ServerFrame_Pong{Pong: &clientv1.Pong{}}},
		`{"type":"gap","channel":"a","epoch":"z","offset":9,"reason":"bus","reload_after_ms":0}`: {Frame: &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{Channel: "a", Epoch: "z", Offset: 9, Reason: "bus"}}},
		`{"type":"event","channel":"a\"\\\u0001é","offset":1,"data":null,"time_ms":0}`:           {Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: "a\"\\\x01é", Offset: 1}}},
	} {
		if got := string(AppendServer(nil, f)); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
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
