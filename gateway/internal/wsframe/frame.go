// Package wsframe is the server's side of RFC 6455 over byte slices: the request
// head of a handshake, client frames in, server frames out. It reads and writes
// no socket.
//
// Package gateway calls it with the bytes that a socket gave; it uses gobwas/ws
// for masks, header checks and close codes, never its readers: those read a
// header line without bound and take what a peer declares.
//
// Life: a Reader belongs to one conn and its loop; the functions keep nothing.
//
// Invariants: lengths are checked from the header before anything is kept; what
// is kept of a peer never exceeds what the peer has sent; the result does not
// depend on how its bytes were cut. A message that came whole in one read is not
// copied, and a conn between messages holds 16 B and no buffer.
//
// Limits: MaxHandshakeBytes, MaxFields, Limits. Left out: permessage-deflate
// (RSV bits are refused), HTTP bodies, HTTP/2.
package wsframe

import (
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Kind is what a message is; its values are the opcodes of RFC 6455 5.2.
type Kind uint8

// Kinds of messages. None is a continuation on the wire and never a message.
const (
	None   Kind = 0x0 // no whole message yet
	Text   Kind = 0x1
	Binary Kind = 0x2
	Close  Kind = 0x8
	Ping   Kind = 0x9
	Pong   Kind = 0xa
)

func (k Kind) String() string {
	switch k {
	case None:
		return "none"
	case Text:
		return "text"
	case Binary:
		return "binary"
	case Close:
		return "close"
	case Ping:
		return "ping"
	case Pong:
		return "pong"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Sizes in bytes.
const (
	MaxHeader       = 10  // of a server frame: no mask
	MaxMaskedHeader = 14  // of a client frame
	MaxControl      = 125 // payload of a control frame (RFC 6455 5.5)
	MaxReason       = MaxControl - 2
)

// HeaderSize returns the size of the header of a server frame with n payload bytes.
func HeaderSize(n int) int {
	switch {
	case n < 126:
		return 2
	case n <= 0xffff:
		return 4
	}
	return MaxHeader
}

// AppendHeader appends the header of an unfragmented server frame whose n payload
// bytes follow. Servers do not mask (RFC 6455 5.1).
func AppendHeader(dst []byte, kind Kind, n int) []byte {
	return appendHeader(dst, kind, n, 0)
}

// appendHeader uses the shortest length encoding, as RFC 6455 5.2 demands.
func appendHeader(dst []byte, kind Kind, n int, mask byte) []byte {
	dst = append(dst, 0x80|byte(kind))
	switch {
	case n < 126:
		return append(dst, mask|byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, mask|126), uint16(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, mask|127), uint64(n))
}

// AppendFrame appends a whole server frame. Control frames take at most MaxControl
// bytes; more is the caller's error and panics.
func AppendFrame(dst []byte, kind Kind, payload []byte) []byte {
	if kind >= Close && len(payload) > MaxControl {
		panic("wsframe: control frame of " + strconv.Itoa(len(payload)) + " bytes")
	}
	return append(AppendHeader(dst, kind, len(payload)), payload...)
}

// AppendMaskedFrame appends a whole client frame: the payload masked with mask.
// For load generators and tests.
func AppendMaskedFrame(dst []byte, kind Kind, payload []byte, mask [4]byte) []byte {
	dst = appendHeader(dst, kind, len(payload), 0x80)
	dst = append(dst, mask[:]...)
	start := len(dst)
	dst = append(dst, payload...)
	ws.Cipher(dst[start:], mask, 0)
	return dst
}

// AppendClose appends a close frame. Code 0 sends none (RFC 6455 5.5.1); a reason
// longer than MaxReason is cut between two characters.
func AppendClose(dst []byte, code uint16, reason string) []byte {
	if code == 0 {
		return AppendHeader(dst, Close, 0)
	}
	if len(reason) > MaxReason {
		cut := MaxReason
		for cut > 0 && !utf8.RuneStart(reason[cut]) {
			cut--
		}
		reason = reason[:cut]
	}
	dst = AppendHeader(dst, Close, 2+len(reason))
	dst = binary.BigEndian.AppendUint16(dst, code)
	return append(dst, reason...)
}
