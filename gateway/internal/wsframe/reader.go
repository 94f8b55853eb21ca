package wsframe

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Limits bound what one client can make a Reader keep. One Limits serves all
// conns; it does not change while they live.
type Limits struct {
	MaxFrameBytes   int // payload of one frame
	MaxMessageBytes int // payload of one message, all its frames together
	// MaxFragments is the most frames of one message. Empty ones count: they cost
	// the peer six bytes and would otherwise never reach another bound.
	MaxFragments int
}

// Message is one whole message or control frame.
type Message struct {
	Kind Kind
	Code uint16 // Close only: its code, CodeNone if it has none
	// Data is the payload, unmasked; of Close the code too, so that it can be sent
	// back as it is. It may lie in the slice given to Next.
	Data []byte
}

// Reason returns the text of a Close.
func (m Message) Reason() []byte {
	if m.Kind != Close || len(m.Data) < 2 {
		return nil
	}
	return m.Data[2:]
}

// Reader cuts the byte stream of one client into messages. The zero value is of
// no use; see NewReader. Owned by the conn's loop. 16 B between messages.
type Reader struct {
	limits *Limits
	part   *partial // nil: between messages and at a frame's start
}

// partial is what is known of a message, or a frame, that has not come whole.
type partial struct {
	// of the message: len(data) <= MaxMessageBytes
	op     ws.OpCode // OpContinuation: no message has begun
	frames int       // begun so far; <= MaxFragments
	data   []byte

	// of the frame under way, if inFrame: got < header.Length
	inFrame bool
	header  ws.Header
	got     int    // payload bytes taken
	control []byte // those of a control frame, which may stand between fragments

	// of a header that has not come whole: headLen < MaxMaskedHeader
	head    [MaxMaskedHeader]byte
	headLen int

	err error // the end: what follows is not looked at
}

// NewReader returns a Reader bounded by limits, which it keeps.
func NewReader(limits *Limits) Reader { return Reader{limits: limits} }

// MaxFrameBytes is the bound of one frame.
func (r *Reader) MaxFrameBytes() int { return r.limits.MaxFrameBytes }

// Between reports whether the reader is between two messages and holds nothing.
func (r *Reader) Between() bool { return r.part == nil }

// Held returns how many bytes of unfinished messages are kept, for accounting.
func (r *Reader) Held() int {
	if r.part == nil {
		return 0
	}
	return cap(r.part.data) + cap(r.part.control)
}

// Next takes bytes from b until a message is whole and returns it with the bytes
// behind it. Kind None: all of b was taken and more is needed. It unmasks in
// place, so b is the Reader's until the message was used and must not be
// given twice; m.Data is good until b is used for something else. The error is
// always an *Error and is repeated for ever.
//
// Bytes behind a Close are not for the Reader (RFC 6455 5.5.1): drop them.
func (r *Reader) Next(b []byte) (m Message, rest []byte, err error) {
	for {
		m, b, err = r.step(b)
		if err == nil && m.Kind != None {
			m, err = finish(m)
		}
		switch {
		case err != nil:
			r.part = &partial{err: err}
			return Message{}, nil, err
		case m.Kind != None || len(b) == 0:
			return m, b, nil
		}
	}
}

// step goes on where the last bytes ended, by one frame at most.
func (r *Reader) step(b []byte) (Message, []byte, error) {
	switch p := r.part; {
	case p != nil && p.err != nil:
		return Message{}, nil, p.err
	case len(b) == 0:
		return Message{}, nil, nil
	case p != nil && p.inFrame:
		m, rest := r.payload(b)
		return m, rest, nil
	case p != nil && p.headLen > 0:
		return r.joinHead(b)
	}
	return r.frame(b)
}

// keep returns the partial, making one.
func (r *Reader) keep() *partial {
	if r.part == nil {
		r.part = new(partial)
	}
	return r.part
}

// frame starts a frame at b[0].
func (r *Reader) frame(b []byte) (Message, []byte, error) {
	h, n, err := parseHeader(b)
	switch {
	case err != nil:
		return Message{}, nil, err
	case n == 0:
		p := r.keep()
		p.headLen = copy(p.head[:], b)
		return Message{}, nil, nil
	}
	return r.body(h, b[n:])
}

// joinHead goes on with a header that came in pieces.
func (r *Reader) joinHead(b []byte) (Message, []byte, error) {
	p := r.part
	before := p.headLen
	p.headLen += copy(p.head[before:], b)
	h, n, err := parseHeader(p.head[:p.headLen])
	switch {
	case err != nil:
		return Message{}, nil, err
	case n == 0:
		return Message{}, nil, nil // all of b was taken: a header fits head
	}
	p.headLen = 0
	return r.body(h, b[n-before:])
}

// body checks a header and takes as much of the payload behind it as is there.
func (r *Reader) body(h ws.Header, b []byte) (Message, []byte, error) {
	if err := r.check(h); err != nil {
		return Message{}, nil, err
	}
	if int64(len(b)) < h.Length {
		r.keep().begin(h)
		m, rest := r.payload(b)
		return m, rest, nil
	}
	payload := b[:h.Length:h.Length]
	ws.Cipher(payload, h.Mask, 0)
	return r.whole(h, payload), b[h.Length:], nil
}

// whole takes a frame that is in the caller's bytes and returns the message that
// it completes, if it does. Only fragments are copied.
func (r *Reader) whole(h ws.Header, payload []byte) Message {
	p := r.part
	inMessage := p != nil && p.op != ws.OpContinuation
	switch {
	case h.OpCode.IsControl():
		if !inMessage {
			r.part = nil
		}
		return Message{Kind: Kind(h.OpCode), Data: payload}
	case h.Fin && !inMessage:
		r.part = nil
		return Message{Kind: Kind(h.OpCode), Data: payload}
	}
	p = r.keep()
	p.join(h)
	p.data = append(p.data, payload...)
	return r.joined(h)
}

// payload takes payload bytes of the frame under way. Memory grows with what has
// come, not with what was declared.
func (r *Reader) payload(b []byte) (Message, []byte) {
	p := r.part
	n := min(len(b), int(p.header.Length)-p.got)
	piece, rest := b[:n], b[n:]
	ws.Cipher(piece, p.header.Mask, p.got)
	p.got += n
	control := p.header.OpCode.IsControl()
	if control {
		p.control = append(p.control, piece...)
	} else {
		p.data = append(p.data, piece...)
	}
	if p.got < int(p.header.Length) {
		return Message{}, rest
	}
	p.inFrame = false
	if !control {
		return r.joined(p.header), rest
	}
	data := p.control
	p.control = nil
	return r.whole(p.header, data), rest
}

// begin notes a frame whose payload has not all come.
func (p *partial) begin(h ws.Header) {
	p.inFrame, p.header, p.got = true, h, 0
	if !h.OpCode.IsControl() {
		p.join(h)
	}
}

// join counts a data frame to the message.
func (p *partial) join(h ws.Header) {
	p.frames++
	if h.OpCode != ws.OpContinuation {
		p.op = h.OpCode
	}
}

// joined returns the message if h, whose payload is in data, was its last frame.
func (r *Reader) joined(h ws.Header) Message {
	if !h.Fin {
		return Message{}
	}
	m := Message{Kind: Kind(r.part.op), Data: r.part.data}
	r.part = nil
	return m
}

// check refuses a frame by its header alone.
func (r *Reader) check(h ws.Header) error {
	state := ws.StateServerSide
	var frames, size int
	if p := r.part; p != nil {
		frames, size = p.frames, len(p.data)
	}
	if frames > 0 {
		state = state.Set(ws.StateFragmented)
	}
	// RFC 6455 5.1 (mask), 5.2 (RSV, opcodes), 5.4 (order), 5.5 (control frames).
	if err := ws.CheckHeader(h, state); err != nil {
		return &Error{CodeProtocol, err.Error()}
	}
	if h.OpCode.IsControl() {
		return nil
	}
	switch l := r.limits; {
	case h.Length > int64(l.MaxFrameBytes):
		return &Error{CodeTooBig, fmt.Sprintf("a frame has at most %d bytes", l.MaxFrameBytes)}
	case h.Length > int64(l.MaxMessageBytes-size):
		return &Error{CodeTooBig, fmt.Sprintf("a message has at most %d bytes", l.MaxMessageBytes)}
	case frames >= l.MaxFragments:
		return &Error{CodeTooBig, fmt.Sprintf("a message has at most %d frames", l.MaxFragments)}
	}
	return nil
}

// finish checks the contents of a whole message.
func finish(m Message) (Message, error) {
	switch m.Kind {
	case Text:
		if !utf8.Valid(m.Data) { // RFC 6455 8.1
			return m, &Error{CodeInvalid, "text is not UTF-8"}
		}
	case Close:
		return finishClose(m)
	}
	return m, nil
}

// finishClose checks code and reason (RFC 6455 5.5.1, 7.4).
func finishClose(m Message) (Message, error) {
	if len(m.Data) == 0 {
		m.Code = CodeNone
		return m, nil
	}
	if len(m.Data) == 1 {
		return m, &Error{CodeProtocol, "close frame with half a code"}
	}
	m.Code = binary.BigEndian.Uint16(m.Data)
	if !validCode(ws.StatusCode(m.Code)) {
		return m, &Error{CodeProtocol, fmt.Sprintf("close code %d must not be sent", m.Code)}
	}
	if !utf8.Valid(m.Data[2:]) {
		return m, &Error{CodeInvalid, "close reason is not UTF-8"}
	}
	return m, nil
}

// validCode says which codes an endpoint may send: those of RFC 6455 7.4.1, those
// that IANA added to it (1012 to 1014), libraries' and applications' (7.4.2).
func validCode(c ws.StatusCode) bool {
	if c >= 1012 && c <= 1014 {
		return true
	}
	return c <= 4999 && ws.CheckCloseFrameData(c, "") == nil
}

// parseHeader reads a frame header (RFC 6455 5.2) from the start of b; n is its
// size, 0 if b ends before it does.
func parseHeader(b []byte) (h ws.Header, n int, err error) {
	if len(b) < 2 {
		return h, 0, nil
	}
	h.Fin = b[0]&0x80 != 0
	h.Rsv = b[0] >> 4 & 7
	h.OpCode = ws.OpCode(b[0] & 0xf)
	h.Masked = b[1]&0x80 != 0
	length := b[1] & 0x7f
	n = 2
	switch length {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if h.Masked {
		n += len(h.Mask)
	}
	if len(b) < n {
		return h, 0, nil
	}
	switch h.Length = int64(length); length {
	case 126:
		if h.Length = int64(binary.BigEndian.Uint16(b[2:])); h.Length < 126 {
			return h, 0, errLength
		}
	case 127:
		// Negative: the most significant bit, which must be 0.
		if h.Length = int64(binary.BigEndian.Uint64(b[2:])); h.Length <= 0xffff {
			return h, 0, errLength
		}
	}
	if h.Masked {
		copy(h.Mask[:], b[n-len(h.Mask):])
	}
	return h, n, nil
}

var errLength = &Error{CodeProtocol, "length is not encoded in the fewest bytes"}
