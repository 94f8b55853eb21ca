// Package wire holds what everybody who speaks the client protocol agrees on:
// limits, channel names and their bus subjects, positions, close codes, error
// words, and the JSON form of the frames of spillway.client.v1.
//
// Edges, routers and the Go SDK call it. Everything here is a pure function
// without state; decoders take bytes from strangers, allocate in proportion to
// them and never panic. PROTOCOL.md is the text that binds.
//
// Left out on purpose: WebSocket framing, sessions, and the binary encoding
// (generated code is enough for it).
package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Subprotocols and limits of the client protocol, in bytes.
const (
	ProtocolJSON  = "spillway.v1.json"
	ProtocolProto = "spillway.v1.proto"
	TicketPrefix  = "spillway.ticket." // + 1..1,024 characters of unpadded base64url

	MaxHandshakeBytes     = 16 << 10
	MaxClientFrameBytes   = 64 << 10 // unless `connected` said more
	MaxServerMessageBytes = 64 << 10 // joined frames
	MaxFrameBytes         = 1 << 20  // any single frame
	MaxChannelBytes       = 255
	MaxKeyBytes           = 255
	MaxMetaBytes          = 4 << 10

	// MaxOffset is the largest integer that every JSON reader keeps exact.
	MaxOffset = 1<<53 - 1

	// UserNamespace is the built-in namespace: "user:<sub>" is every user's own.
	UserNamespace = "user"
)

// CheckChannel says what is wrong with a channel's name, or nil: UTF-8, 1 to 255
// bytes, no control characters. Every other character is allowed.
func CheckChannel(name string) error {
	switch {
	case name == "":
		return errors.New("channel: must not be empty")
	case len(name) > MaxChannelBytes:
		return fmt.Errorf("channel: %d bytes, at most %d are allowed", len(name), MaxChannelBytes)
	}
	return checkText("channel", name)
}

// CheckKey says what is wrong with an idempotency key; "" is none.
func CheckKey(key string) error {
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("key: %d bytes, at most %d are allowed", len(key), MaxKeyBytes)
	}
	return checkText("key", key)
}

func checkText(field, s string) error {
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			return fmt.Errorf("%s: not UTF-8 at byte %d", field, i)
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			return fmt.Errorf("%s: control character %U at byte %d", field, r, i)
		}
	}
	return nil
}

// Namespace is what stands before the first colon: "chat" of "chat:room-7", ""
// of "news".
func Namespace(channel string) string {
	ns, _, found := strings.Cut(channel, ":")
	if !found {
		return ""
	}
	return ns
}

// UserChannel is the channel of one user.
func UserChannel(sub string) string { return UserNamespace + ":" + sub }

// Subject is the bus subject of a channel: prefix + ".ch." + the name with every
// byte that NATS treats specially percent-encoded. Distinct channels have
// distinct subjects. (nats.go publishes to "a.*" without an error.)
func Subject(prefix, channel string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(prefix)+4+len(channel)+8)
	b = append(b, prefix...)
	b = append(b, ".ch."...)
	for i := 0; i < len(channel); i++ {
		switch c := channel[i]; {
		case c <= ' ', c == 0x7f, c == '.', c == '*', c == '>', c == '%', c == '$':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return string(b)
}

// FormatEpoch gives the word that clients see for an epoch.
func FormatEpoch(epoch uint64) string { return strconv.FormatUint(epoch, 36) }

// ParseEpoch reads it back; false: it is none of ours. Zero is never an epoch.
func ParseEpoch(s string) (uint64, bool) {
	epoch, err := strconv.ParseUint(s, 36, 64)
	if err != nil || epoch == 0 || FormatEpoch(epoch) != s {
		return 0, false
	}
	return epoch, true
}
