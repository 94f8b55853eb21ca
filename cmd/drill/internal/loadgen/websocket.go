package loadgen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/client/machine"
	"github.com/spillway-io/spillway/proto/wire"
)

// maxHead bounds the answer to the handshake, refusal body included.
const maxHead = 16 << 10

var errBroken = errors.New("not the protocol")

var headEnd = []byte("\r\n\r\n")

// answer reads the answer to the handshake from b and returns what follows it;
// ok=false: it has not come whole, or ended the attempt.
func (l *loop) answer(k *conn, b []byte) (rest []byte, ok bool, err error) {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		if len(b) > maxHead {
			return nil, false, errBroken
		}
		k.rest = append([]byte(nil), b...)
		return nil, false, nil
	}
	head := b[:end+2] // the last line has its end
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) || len(head) < 12 {
		return nil, false, errBroken
	}
	if status := string(head[9:12]); status != "101" {
		k.refused = status
		k.rest = append([]byte(nil), b...) // for refusal
		if size, told := contentLength(head); len(b) > maxHead || told && len(b) >= end+len(headEnd)+size {
			l.connLost(k, CauseRefused)
		}
		return nil, false, nil
	}
	if !bytes.Contains(head, l.accept) {
		return nil, false, errBroken
	}
	k.state = open
	k.client.machine.Opened(l.time(), k.link)
	use := k.use
	l.step(k.client)
	return b[end+4:], k.use == use, nil
}

// contentLength of an answer; without it the body ends with the stream.
func contentLength(head []byte) (n int, told bool) {
	const name = "\r\nContent-Length: "
	at := bytes.Index(head, []byte(name))
	if at < 0 {
		return 0, false
	}
	value, _, _ := bytes.Cut(head[at+len(name):], []byte("\r\n"))
	n, err := strconv.Atoi(string(value))
	return n, err == nil && n >= 0
}

// refusal is what the answer to the handshake told, as far as it has come.
func (k *conn) refusal() machine.Refusal {
	if k.refused == "" {
		return machine.Refusal{}
	}
	return machine.ReadRefusal(bytes.NewReader(k.rest))
}

// frames serves the WebSocket frames in b. What has not come whole is kept.
func (l *loop) frames(k *conn, b []byte) error {
	for use := k.use; len(b) > 0 && k.use == use; {
		op, payload, n, err := cutFrame(b)
		if err != nil {
			return err
		}
		if n == 0 {
			k.rest = append([]byte(nil), b...)
			return nil
		}
		b = b[n:]
		switch op {
		case ws.OpText:
			if err := l.text(k, payload); err != nil {
				return err
			}
			continue
		case ws.OpPing:
			l.sendFrame(k, ws.OpPong, payload)
		case ws.OpPong:
		case ws.OpClose:
			if len(payload) >= 2 {
				k.code = binary.BigEndian.Uint16(payload)
			}
			if k.state != leaving {
				l.sendFrame(k, ws.OpClose, payload)
			}
			l.connLost(k, CauseClosed)
			return nil
		default:
			return errBroken
		}
		if k.state == open {
			k.client.machine.Alive(k.link)
		}
	}
	return nil
}

// cutFrame finds the first frame of a server in b; n is its size, 0: not whole.
// Servers do not mask (RFC 6455 5.1); edges do not fragment.
func cutFrame(b []byte) (op ws.OpCode, payload []byte, n int, err error) {
	if len(b) < 2 {
		return 0, nil, 0, nil
	}
	if b[0]&0xf0 != 0x80 || b[1]&0x80 != 0 { // FIN, no extension; not masked
		return 0, nil, 0, errBroken
	}
	size, at := int(b[1]), 2
	switch size {
	case 126:
		if len(b) < 4 {
			return 0, nil, 0, nil
		}
		size, at = int(binary.BigEndian.Uint16(b[2:])), 4
	case 127:
		if len(b) < 10 {
			return 0, nil, 0, nil
		}
		long := binary.BigEndian.Uint64(b[2:])
		if long > wire.MaxFrameBytes {
			return 0, nil, 0, errBroken
		}
		size, at = int(long), 10
	}
	if len(b)-at < size {
		return 0, nil, 0, nil
	}
	return ws.OpCode(b[0] & 0xf), b[at : at+size], at + size, nil
}

// sendClose writes a close frame.
func (l *loop) sendClose(k *conn, code wire.CloseCode) {
	var body [2]byte
	binary.BigEndian.PutUint16(body[:], uint16(code))
	l.sendFrame(k, ws.OpClose, body[:])
}

// sendFrame writes a masked frame.
func (l *loop) sendFrame(k *conn, op ws.OpCode, payload []byte) {
	b := append(l.scratch[:0], 0x80|byte(op))
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	var mask [4]byte
	binary.BigEndian.PutUint32(mask[:], l.rand.Uint32())
	b = append(b, mask[:]...)
	at := len(b)
	b = append(b, payload...)
	ws.Cipher(b[at:], mask, 0)
	l.scratch = b
	l.write(k, b)
}

// write gives bytes to the socket, and keeps what it does not take.
func (l *loop) write(k *conn, b []byte) {
	if len(k.out) > 0 {
		k.out = append(k.out, b...)
		return
	}
	n, err := unix.Write(k.fd, b)
	if err != nil && err != unix.EAGAIN {
		l.failSoon(k, CauseReset)
		return
	}
	if n = max(n, 0); n < len(b) {
		k.out = append(k.out, b[n:]...)
	}
}

// flush writes what was kept.
func (l *loop) flush(k *conn) {
	b := k.out
	k.out = nil
	l.write(k, b)
}
