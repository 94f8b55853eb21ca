package client

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/proto/wire"
)

// FuzzReader: no bytes of a server make the reader panic, or hold more than a frame
// may have.
func FuzzReader(f *testing.F) {
	frames := func(list ...ws.Frame) []byte {
		var b bytes.Buffer
		for _, x := range list {
			ws.WriteFrame(&b, x)
		}
		return b.Bytes()
	}
	f.Add(frames(ws.NewTextFrame([]byte(`{"type":"pong","id":1}`)), ws.NewPingFrame([]byte("x"))))
	f.Add(frames(ws.NewFrame(ws.OpText, false, []byte("ab")), ws.NewPingFrame(nil), ws.NewFrame(ws.OpContinuation, true, []byte("c"))))
	f.Add(frames(ws.NewCloseFrame(ws.NewCloseFrameBody(4001, "shutdown"))))
	f.Add([]byte{0x81, 0x7f, 0, 0, 0, 0, 0, 0x10, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reader{br: bufio.NewReader(bytes.NewReader(data))}
		for {
			op, payload, err := r.next()
			if err != nil {
				return
			}
			if len(payload) > wire.MaxFrameBytes || len(payload) > len(data) {
				t.Fatalf("%d bytes of %d", len(payload), len(data))
			}
			if op != ws.OpText && op != ws.OpPing && op != ws.OpPong && op != ws.OpClose {
				t.Fatalf("op %v", op)
			}
		}
	})
}
