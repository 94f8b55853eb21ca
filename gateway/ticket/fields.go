package ticket

import (
	"encoding/binary"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
)

// The fields of a ticket, in this order. Strings have a length of one byte, times
// are Unix milliseconds as varints with 0 for none.
//
//	kind 1, flags 1, expires, edge
//	session 16                                        if hasSession
//	operation, target                                 if Moved
//	slot from, slot until                             if Moved or Pass
//	lane 1, nonce 8                                   if Pass
//	user, token id, token issued, token expires       if hasIdentity
//	rights (auth.AppendRights) to the end             if hasIdentity
const (
	flagSession = 1 << iota
	flagIdentity
	flagCritical
	flagPartial
	flagsKnown = 1<<iota - 1
)

// appendFields leaves out what rights have no room; more than maxFields: not even
// the others have.
func (t *Ticket) appendFields(b []byte, claims *auth.Claims) []byte {
	flags := byte(0)
	set := func(on bool, flag byte) {
		if on {
			flags |= flag
		}
	}
	set(t.HasSession, flagSession)
	set(t.HasIdentity, flagIdentity)
	set(t.HasIdentity && t.Critical, flagCritical)
	b = append(b, byte(t.Kind), 0)
	b = appendTime(b, t.Expires)
	b = appendText(b, t.Edge)
	if t.HasSession {
		b = append(b, t.Session[:]...)
	}
	if t.Kind == Moved {
		b = appendText(b, t.Operation)
		b = appendText(b, t.Target)
	}
	if t.Kind == Moved || t.Kind == Pass {
		b = appendTime(b, t.SlotFrom)
		b = appendTime(b, t.SlotUntil)
	}
	if t.Kind == Pass {
		b = append(b, t.Lane)
		b = binary.BigEndian.AppendUint64(b, t.Nonce)
	}
	if t.HasIdentity {
		b = appendText(b, t.User)
		b = appendText(b, t.TokenID)
		b = appendTime(b, t.TokenIssued)
		b = appendTime(b, t.TokenExpires)
		var whole bool
		b, whole = claims.AppendRights(b, maxFields-len(b))
		set(!whole, flagPartial)
	}
	b[1] = flags
	return b
}

// tooLong is what appendText writes for a text that no ticket holds: Seal then
// finds the ticket too large.
const tooLong = maxFields + 1

func appendText(b []byte, text string) []byte {
	if len(text) > 255 {
		return append(b, make([]byte, tooLong)...)
	}
	return append(append(b, byte(len(text))), text...)
}

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(max(t.UnixMilli(), 1)))
}

// reader takes fields off a text; bad once one was not there.
type reader struct {
	text string
	bad  bool
}

func (r *reader) take(n int) string {
	if n > len(r.text) {
		r.bad, r.text = true, ""
		return ""
	}
	taken := r.text[:n]
	r.text = r.text[n:]
	return taken
}

func (r *reader) byte() byte {
	if s := r.take(1); s != "" {
		return s[0]
	}
	return 0
}

func (r *reader) string() string { return r.take(int(r.byte())) }

func (r *reader) time() time.Time {
	ms := uint64(0)
	for shift := 0; ; shift += 7 {
		b := r.byte()
		ms |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
		if shift > 42 {
			r.bad = true
			break
		}
	}
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

// readFields is strict: only what appendFields can have written is read.
func (t *Ticket) readFields(text string) bool {
	r := reader{text: text}
	t.Kind = Kind(r.byte())
	flags := r.byte()
	if t.Kind < Resume || t.Kind > Pass || flags&^flagsKnown != 0 {
		return false
	}
	t.HasSession, t.HasIdentity = flags&flagSession != 0, flags&flagIdentity != 0
	t.Critical, t.Partial = flags&flagCritical != 0, flags&flagPartial != 0
	t.Expires = r.time()
	t.Edge = r.string()
	if t.HasSession {
		copy(t.Session[:], r.take(len(t.Session)))
	}
	if t.Kind == Moved {
		t.Operation, t.Target = r.string(), r.string()
	}
	if t.Kind == Moved || t.Kind == Pass {
		t.SlotFrom, t.SlotUntil = r.time(), r.time()
	}
	if t.Kind == Pass {
		t.Lane = r.byte()
		for range 8 {
			t.Nonce = t.Nonce<<8 | uint64(r.byte())
		}
	}
	if t.HasIdentity {
		t.User, t.TokenID = r.string(), r.string()
		t.TokenIssued, t.TokenExpires = r.time(), r.time()
		t.rights, r.text = r.text, ""
	}
	return !r.bad && r.text == ""
}
