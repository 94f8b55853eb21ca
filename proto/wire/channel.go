package wire

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
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
