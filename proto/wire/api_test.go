package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestPublishOverHTTPKeepsDataAsItWasWritten(t *testing.T) {
	for text, want := range map[string]*routerv1.Publication{
		`{"channel":"a","data": {"n" : 9007199254740993} ,"key":"k","meta":{"x":"y"}}`: {
			Channel: "a", Key: "k", Meta: map[string]string{"x": "y"}, Data: &routerv1.Publication_Json{Json: `{"n" : 9007199254740993}`},
		},
		`{"channel":"a","data":null}`:                   {Channel: "a", Data: &routerv1.Publication_Json{Json: "null"}},
		"{\"channel\":\"\\u0061\",\"data_b64\":\"/w\"}": {Channel: "a", Data: &routerv1.Publication_Binary{Binary: []byte{0xff}}},
		`{"data":1,"data_b64":null,"key":null}`:         {Data: &routerv1.Publication_Json{Json: "1"}},
	} {
		var got routerv1.PublishRequest
		if err := DecodePublish([]byte(text), &got); err != nil || !proto.Equal(got.Publication, want) {
			t.Errorf("%s: %v, %v", text, &got, err)
		}
	}
}

func TestMistakesOverHTTPAreNamed(t *testing.T) {
	publish := func(text string) error { return DecodePublish([]byte(text), new(routerv1.PublishRequest)) }
	batch := func(text string) error { return DecodePublishBatch([]byte(text), 2, new(routerv1.PublishBatchRequest)) }
	broadcast := func(text string) error { return DecodeBroadcast([]byte(text), 2, new(routerv1.BroadcastRequest)) }
	for _, c := range []struct {
		decode     func(string) error
		text, want string
	}{
		{publish, ``, "not JSON at byte 0"},
		{publish, `[]`, "an object is expected"},
		{publish, `{"channel":"a"}`, "data, data_b64: exactly one is expected"},
		{publish, `{"channel":"a","data":1,"data_b64":"AA"}`, "data, data_b64: exactly one is expected"},
		{publish, `{"channel":"a","data":1,"Key":"k"}`, "Key: unknown field"},
		{publish, `{"channel":7,"data":1}`, "channel: a string is expected"},
		{publish, `{"channel":"\ud800","data":1}`, "channel: not Unicode text"},
		{publish, `{"channel":"a","data":1,"meta":{"a":1}}`, `meta: "a": a string is expected`},
		{publish, `{"channel":"a","data_b64":"?"}`, "data_b64: illegal base64"},
		{publish, `{"channel":"a","data":1} 2`, "something follows"},
		{batch, `{}`, "publications: an array is expected"},
		{batch, `{"publications":{}}`, "publications: an array is expected"},
		{batch, `{"publications":[{"channel":"a","data":1},2]}`, "publications[1]: an object is expected"},
		{batch, `{"publications":[{"channel":"a","data":1},{"chanel":"a"}]}`, "publications[1]: chanel: unknown field"},
		{batch, `{"publications":[{"channel":"a"}]}`, "publications[0].data, data_b64"},
		{batch, `{"publications":[{"data":1},{"data":1},{"data":1}]}`, "publications: at most 2 are allowed"},
		{broadcast, `{"data":1}`, "channels: an array is expected"},
		{broadcast, `{"channels":["a",1],"data":1}`, "channels[1]: a string is expected"},
		{broadcast, `{"channels":["a","b","c"],"data":1}`, "channels: at most 2 are allowed"},
		{broadcast, `{"channels":["a"],"channel":"a","data":1}`, "channel: unknown field"},
	} {
		if err := c.decode(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestAnswersOverHTTP(t *testing.T) {
	var b routerv1.BroadcastRequest
	if err := DecodeBroadcast([]byte(`{"channels":[ "a" , "b" ],"data_b64":""}`), 2, &b); err != nil || len(b.Channels) != 2 || b.Publication.GetBinary() == nil {
		t.Errorf("%v, %v", &b, err)
	}
	results := []*routerv1.PublishResult{
		{Outcome: &routerv1.PublishResult_Placed{Placed: &routerv1.Placed{Channel: "a", Epoch: "e", Offset: 3, Repeat: true}}},
		{Outcome: &routerv1.PublishResult_Failure{Failure: &routerv1.Failure{Code: 8, Message: `"wait"`, RetryAfterMs: 20}}},
	}
	page := &routerv1.ReadHistoryResponse{Channel: "a", Epoch: "e", Head: 2, First: 1, More: true, Events: []*routerv1.HistoryEvent{
		{Offset: 1, TimeMs: 7, From: "ann", Data: &routerv1.HistoryEvent_Json{Json: `{"n":1e400}`}, Meta: map[string]string{"k": "v"}},
		{Offset: 2, TimeMs: 8, Data: &routerv1.HistoryEvent_Binary{Binary: []byte{0xff}}},
	}}
	for got, want := range map[string]string{
		string(AppendPublishResults(nil, results)): `{"results":[{"channel":"a","epoch":"e","offset":3,"repeat":true},` +
			`{"error":{"code":"resource_exhausted","message":"\"wait\"","retry_after_ms":20}}]}`,
		string(AppendPlaced(nil, results[0].GetPlaced())): `{"channel":"a","epoch":"e","offset":3,"repeat":true}`,
		string(AppendStatus(nil, 99, "x", 0)):             `{"code":"unknown","message":"x"}`,
		string(AppendHistory(nil, page)): `{"channel":"a","epoch":"e","head":2,"first":1,"events":[{"offset":1,"data":{"n":1e400},"time_ms":7,"from":"ann",` +
			`"meta":{"k":"v"}},{"offset":2,"data_b64":"/w==","time_ms":8}],"more":true}`,
		string(AppendHistory(nil, new(routerv1.ReadHistoryResponse))): `{"channel":"","epoch":"","head":0,"first":0,"events":[],"more":false}`,
	} {
		if got != want || !json.Valid([]byte(got)) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func FuzzDecodeHTTP(f *testing.F) {
	f.Add([]byte(`{"publications":[{"channel":"a","data":[1, 2],"meta":{"a":"b"}}]}`))
	f.Add([]byte(`{"channels":["a"],"data_b64":"AA==","key":"k"}`))
	f.Add([]byte(`{"channel":"a","data":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var one routerv1.PublishRequest
		var many routerv1.PublishBatchRequest
		var wide routerv1.BroadcastRequest
		for _, err := range []error{DecodePublish(text, &one), DecodePublishBatch(text, 3, &many), DecodeBroadcast(text, 3, &wide)} {
			if err == nil && !json.Valid(text) {
				t.Fatalf("%q was taken", text)
			}
		}
		if len(many.Publications) > 3 || len(wide.Channels) > 3 {
			t.Fatalf("more than allowed: %q", text)
		}
	})
}
