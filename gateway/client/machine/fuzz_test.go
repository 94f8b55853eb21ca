package machine

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// FuzzServerFrames: no frames of servers make the machine panic or spin, on one
// connection or on two. A line that begins with + comes on the newest, any other on
// the oldest.
func FuzzServerFrames(f *testing.F) {
	f.Add([]byte(`{"type":"connected","id":1,"subscriptions":[{"channel":"a","epoch":"e","offset":4}],"ping_interval_ms":1}
{"type":"event","channel":"a","offset":5,"data":1}
{"type":"error","id":2,"code":"expired","close":4100}`))
	f.Add([]byte(`{"type":"subscribed","channel":"a","pending":true}`))
	f.Add([]byte(`{"type":"connected","id":1,"max_frame_bytes":1,"expires_in_ms":0,"pong_timeout_ms":4294967295,"subscriptions":[{"channel":"a","error":{"temporary":true}}]}`))
	f.Add([]byte(`{"type":"connected","id":1,"node":"1","ticket":"t","subscriptions":[{"channel":"a","epoch":"e","offset":4,"recovered":true}]}
{"type":"reconnect","after_ms":0,"deadline_ms":9000,"url":"wss://b.test/","ticket":"u"}
+{"type":"connected","id":3,"node":"2","subscriptions":[{"channel":"a","epoch":"e","offset":9}]}
+{"type":"gap","channel":"a","epoch":"f","offset":3}
{"type":"gap","channel":"a","epoch":"f","offset":2}
{"type":"event","channel":"a","offset":3,"data":1}
+{"type":"busy","retry_after_ms":0,"url":"http://x/","ticket":"v"}
+{"type":"reconnect","after_ms":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		now := time.Unix(1_764_470_000, 0)
		m := newMachine("ws://a.test/v1/ws")
		_ = m.Subscribe(now, &Subscription{channel: "a", known: true, pos: Position{"e", 4}})
		_ = m.Subscribe(now, &Subscription{channel: "b", last: 3})
		m.Start(now)
		alive := []int{}
		untilQuiet := func() {
			for i := 0; ; i++ {
				for _, a := range m.Take() {
					switch a := a.(type) {
					case OpenLink:
						alive = append(alive, a.Link)
						if a.Ticket != "" && !ticketOK(a.Ticket) {
							t.Fatalf("offers %q", a.Ticket)
						}
						m.Opened(now, a.Link)
					case DropLink:
						alive = slices.DeleteFunc(alive, func(n int) bool { return n == a.Link })
					}
				}
				if len(m.out) == 0 && (m.Wake().IsZero() || m.Wake().After(now)) {
					return
				}
				if i > 100 {
					t.Fatal("the machine spins")
				}
				m.Tick(now, false)
			}
		}
		untilQuiet()
		for line := range bytes.SplitSeq(text, []byte{'\n'}) {
			line, newest := bytes.CutPrefix(line, []byte("+"))
			frame, err := wire.DecodeServer(line)
			if err != nil || len(alive) == 0 {
				continue
			}
			n := alive[0]
			if newest {
				n = alive[len(alive)-1]
			}
			m.Frame(now, n, frame)
			untilQuiet()
			if len(alive) > 2 {
				t.Fatalf("%d connections", len(alive))
			}
			now = now.Add(time.Second)
		}
	})
}

func FuzzRefusal(f *testing.F) {
	f.Add([]byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 9\r\nContent-Length: 23\r\n\r\n{\"retry_after_ms\":4200}"))
	f.Add([]byte("HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := ReadRefusal(bytes.NewReader(text))
		if r.Wait < 0 || r.Ours && !r.WaitIsTold {
			t.Fatalf("%+v", r)
		}
		_ = ReadRefusal(io.MultiReader(bytes.NewReader(text), endless{}))
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
