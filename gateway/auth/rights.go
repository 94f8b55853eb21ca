package auth

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/proto/wire"
)

// The head of an entry: rights in the low half, and what the name is.
const (
	entryRights = 0x0f
	entryJoin   = 0x10 // a channel that is joined at connect
	entryPrefix = 0x20 // a beginning of names
	entryInfo   = 0x40 // not a name: the claim info
)

// AppendRights appends the rights, joins and info of c, at most room bytes of them,
// for a ticket: head, length (varint) and bytes of each entry. whole: nothing was
// left out. If something is, it is the same with every ticket: a client does not find
// other rights gone each time.
func (c *Claims) AppendRights(dst []byte, room int) (out []byte, whole bool) {
	end := len(dst) + room
	whole = !c.Partial
	add := func(head byte, text string) {
		size := 1 + varintSize(len(text)) + len(text)
		if len(dst)+size > end {
			whole = false
			return
		}
		dst = append(dst, head)
		dst = binary.AppendUvarint(dst, uint64(len(text)))
		dst = append(dst, text...)
	}
	for _, p := range c.prefixes {
		if p.rights != 0 {
			add(entryPrefix|byte(p.rights), p.text)
		}
	}
	joined := make(map[string]bool, len(c.Join))
	for _, channel := range c.Join {
		joined[channel] = true
		add(entryJoin|byte(c.exact[channel]), channel)
	}
	channels := make([]string, 0, len(c.exact))
	size := len(dst)
	for channel, rights := range c.exact {
		if rights != 0 && !joined[channel] {
			channels = append(channels, channel)
			size += 1 + varintSize(len(channel)) + len(channel)
		}
	}
	if size+len(c.Info) > end-3 {
		slices.SortFunc(channels, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	}
	for _, channel := range channels {
		add(byte(c.exact[channel]), channel)
	}
	if len(c.Info) > 0 {
		add(entryInfo, string(c.Info))
	}
	return dst, whole
}

func varintSize(n int) int {
	if n < 1<<7 {
		return 1
	}
	return 2 // a token has at most 8 KiB
}

var errRights = errors.New("auth: rights are damaged")

// Restore gives c the rights that AppendRights wrote, and user:<sub>. Names are
// parts of text, which they keep alive.
func (c *Claims) Restore(text string) error {
	if c.Subject != "" {
		c.own = wire.UserChannel(c.Subject)
	}
	for len(text) > 0 {
		head := text[0]
		name, rest, ok := cutEntry(text[1:])
		if !ok {
			return errRights
		}
		text = rest
		rights := Right(head & entryRights)
		switch head &^ entryRights {
		case 0:
			c.grantExact(name, rights)
		case entryJoin:
			c.Join = append(c.Join, name)
			c.grantExact(name, rights)
		case entryPrefix:
			c.prefixes = append(c.prefixes, prefix{name, rights})
		case entryInfo:
			c.Info = []byte(name)
		default:
			return errRights
		}
	}
	return nil
}

// cutEntry takes a length and so many bytes off text.
func cutEntry(text string) (entry, rest string, ok bool) {
	if text == "" {
		return "", "", false
	}
	n, used := int(text[0]), 1
	if n >= 1<<7 {
		if len(text) < 2 || text[1] >= 1<<7 {
			return "", "", false
		}
		n, used = n&0x7f|int(text[1])<<7, 2
	}
	if len(text)-used < n {
		return "", "", false
	}
	return text[used : used+n], text[used+n:], true
}
