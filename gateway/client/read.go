package client

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"iter"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/proto/wire"
)

// protocolError: the server broke the WebSocket protocol or its limits.
type protocolError struct {
	code wire.CloseCode
	what string
}

func (e *protocolError) Error() string { return "server: " + e.what }

// maxFragments of one message. Empty ones cost a server nothing.
const maxFragments = 256

// reader gives whole messages and control frames, with every length checked before
// anything is allocated for it.
type reader struct {
	br        *bufio.Reader
	message   []byte // so far
	fragments int    // of a message that is not whole yet
}

// next returns a text message, ping, pong or close. The payload is good until
// the next call.
func (r *reader) next() (ws.OpCode, []byte, error) {
	if r.fragments == 0 {
		r.message = r.message[:0]
		if cap(r.message) > wire.MaxServerMessageBytes {
			r.message = nil // one big message does not keep its room for ever
		}
	}
	for {
		h, err := ws.ReadHeader(r.br)
		if err != nil {
			return 0, nil, err
		}
		if err := r.check(h); err != nil {
			return 0, nil, err
		}
		if h.OpCode.IsControl() {
			control := make([]byte, h.Length)
			_, err := io.ReadFull(r.br, control)
			return h.OpCode, control, err
		}
		start := len(r.message)
		r.message = append(r.message, make([]byte, h.Length)...)
		if _, err := io.ReadFull(r.br, r.message[start:]); err != nil {
			return 0, nil, err
		}
		if h.Fin {
			r.fragments = 0
			return ws.OpText, r.message, nil
		}
		r.fragments++
	}
}

// check is RFC 6455, 5.2, 5.4 and 5.5, and our own limits.
func (r *reader) check(h ws.Header) error {
	state := ws.StateClientSide
	if r.fragments > 0 {
		state = state.Set(ws.StateFragmented)
	}
	if err := ws.CheckHeader(h, state); err != nil {
		return &protocolError{wire.CloseProtocol, err.Error()}
	}
	switch {
	case h.Masked:
		return &protocolError{wire.CloseProtocol, "a masked frame"}
	case h.OpCode.IsControl():
		return nil
	case h.OpCode == ws.OpBinary:
		return &protocolError{wire.CloseUnsupported, "a binary message"}
	case h.Length > int64(wire.MaxFrameBytes-len(r.message)):
		return &protocolError{wire.CloseTooBig, fmt.Sprintf("a message over %d bytes", wire.MaxFrameBytes)}
	case r.fragments >= maxFragments:
		return &protocolError{wire.CloseProtocol, fmt.Sprintf("a message in over %d fragments", maxFragments)}
	}
	return nil
}

// lines are the frames joined in a message.
func lines(message []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.SplitSeq(message, []byte{'\n'}) {
			if len(bytes.TrimSpace(line)) > 0 && !yield(line) {
				return
			}
		}
	}
}
