package payload

import (
	"testing"
	"time"
)

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, "chat:1", 7, time.Unix(1, 2), 128), "chat:1")
	f.Add([]byte(`{"lg":"`), "")
	f.Fuzz(func(t *testing.T, b []byte, channel string) {
		seq, sent, ok := Read(b, []byte(channel))
		if !ok {
			return
		}
		if again := Append(nil, channel, seq, time.Unix(0, sent), len(b)); len(again) < MinBytes {
			t.Fatalf("%q", again)
		}
	})
}
