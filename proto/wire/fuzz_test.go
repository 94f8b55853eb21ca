package wire

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

func FuzzDecodeClient(f *testing.F) {
	for _, line := range commands {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"type":"subscribe","id":1e0,"subscriptions":[{"channel":"\ud83d\ude00","offset":1.0,"x":[]}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		frame, problem := DecodeClient(line)
		if !bytes.Equal(before, line) {
			t.Fatalf("%q was changed", before)
		}
		if problem != nil {
			if problem.Code != badRequest || problem.Message == "" {
				t.Fatalf("%q: %+v", line, problem)
			}
			return
		}
		if frame.Id == 0 || frame.Frame == nil || !json.Valid(line) {
			t.Fatalf("%q passed as %v", line, frame)
		}
		text := AppendClient(nil, frame)
		for i := range line {
			line[i] = 'x' // the frame must not look at the text any more
		}
		again, problem := DecodeClient(text)
		if problem != nil || !proto.Equal(again, frame) {
			t.Fatalf("%q: %v came back as %v, %v", before, frame, again, problem)
		}
		if !utf8.Valid(text) || bytes.ContainsAny(text, "\n\r") {
			t.Fatalf("%q was written as %q", before, text)
		}
	})
}

func FuzzDecodeServer(f *testing.F) {
	for _, s := range []string{
		`{"type":"event","channel":"a","offset":1,"data":{},"time_ms":1,"meta":{"k":"v"}}`,
		`{"type":"subscribed","subscriptions":[{"channel":"a","pending":true}]}`,
		`{"type":"connected","id":1,"session":"s","subscriptions":[{"channel":"a","error":{"code":"forbidden","close":4200}}]}`,
		`{"type":"history","id":1,"channel":"a","epoch":"1","events":[{"offset":1,"data_b64":"AA"}],"more":true}`,
		`{"type":"presence","channel":"a","rev":1,"count":2,"members":[{"user":"u","info":null}]}`,
		`{"type":"later"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		frame, err := DecodeServer(line)
		if err != nil || frame.Frame == nil {
			return
		}
		if !json.Valid(line) {
			t.Fatalf("%q passed as %v", line, frame)
		}
		text := AppendServer(nil, frame)
		again, err := DecodeServer(text)
		if err != nil || !proto.Equal(again, frame) {
			t.Fatalf("%q: %v\nwas written as %s\nand came back as %v, %v", line, frame, text, again, err)
		}
	})
}
