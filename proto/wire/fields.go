package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strings"
)

// field is a name that some frame has.
type field uint8

const (
	fUnknown field = iota
	fAfterMS
	fAttempt
	fChannel
	fChannels
	fClient
	fClose
	fCode
	fCount
	fCountsOnly
	fData
	fDataB64
	fDeadlineMS
	fEpoch
	fError
	fEvents
	fExpiresInMS
	fFrom
	fID
	fInfo
	fJoined
	fKey
	fLast
	fLeft
	fLimit
	fMaxFrameBytes
	fMembers
	fMessage
	fMeta
	fMore
	fNode
	fOffset
	fPending
	fPingIntervalMS
	fPongTimeoutMS
	fPresence
	fPublications
	fReason
	fRecovered
	fRegion
	fReloadAfterMS
	fResumed
	fRetryAfterMS
	fRetryWindowMS
	fRev
	fReverse
	fScope
	fSession
	fSubscriptions
	fTemporary
	fTicket
	fTimeMS
	fToken
	fType
	fURL
	fUser
	fieldCount
)

var fieldNames = [fieldCount]string{
	"", "after_ms", "attempt", "channel", "channels", "client", "close", "code", "count", "counts_only", "data", "data_b64",
	"deadline_ms", "epoch", "error", "events", "expires_in_ms", "from", "id", "info", "joined", "key", "last", "left",
	"limit", "max_frame_bytes", "members", "message", "meta", "more", "node", "offset", "pending", "ping_interval_ms",
	"pong_timeout_ms", "presence", "publications", "reason", "recovered", "region", "reload_after_ms", "resumed", "retry_after_ms",
	"retry_window_ms", "rev", "reverse", "scope", "session", "subscriptions", "temporary", "ticket", "time_ms", "token",
	"type", "url", "user",
}

var fieldOf = func() map[string]field {
	m := make(map[string]field, fieldCount)
	for f, name := range fieldNames {
		m[name] = field(f)
	}
	m[""] = fUnknown
	return m
}()

// fields are the raw values of one JSON object whose names some frame has; the
// rest is ignored, names are compared exactly, and of a name that stands twice the
// last counts. null is the same as absence. Values are read when a frame wants
// them, so a field that the frame does not have may hold anything.
type fields struct {
	raw [fieldCount][]byte
	err error // the first value that was not what its reader wants
}

// read takes the object that text consists of.
func (f *fields) read(text []byte) error {
	return eachField(text, func(name, value []byte) error {
		if id := lookup(name); id != fUnknown {
			f.raw[id] = value
		}
		return nil
	})
}

func lookup(quoted []byte) field {
	plain := quoted[1 : len(quoted)-1]
	for _, c := range plain {
		if c == '\\' {
			name, _ := unquote(quoted)
			return fieldOf[name]
		}
	}
	return fieldOf[string(plain)]
}

// eachField checks that text is one JSON object and hands out its fields: the
// name with its quotes, the value without white space around it.
func eachField(text []byte, visit func(name, value []byte) error) error {
	s := scanner{b: text}
	if s.peek() != '{' {
		if _, _, err := scanValue(text, 0); err != nil {
			return err
		}
		return bad(skipSpace(text, 0), "an object is expected")
	}
	s.i++
	for more := s.peek() != '}'; more; {
		start := s.i
		if err := s.fieldName(); err != nil {
			return err
		}
		colon := s.i
		value, err := s.value()
		if err != nil {
			return err
		}
		name := bytes.TrimRight(text[start:colon-1], " \t\r\n")
		if err := visit(name, value); err != nil {
			return err
		}
		if more, err = s.comma('}'); err != nil {
			return err
		}
	}
	s.i++
	if s.peek(); s.i < len(text) {
		return bad(s.i, "something follows the object")
	}
	return nil
}

// value reads one whole value, nested within the brackets of the caller.
func (s *scanner) value() ([]byte, error) {
	s.peek()
	start := s.i
	end, _, err := scanValue(s.b, s.i)
	s.i = end
	return s.b[start:max(start, end)], err
}

// comma moves to the next element; false: the closing bracket is here.
func (s *scanner) comma(closing byte) (more bool, err error) {
	switch s.peek() {
	case ',':
		s.i++
		s.peek()
		return true, nil
	case closing:
		return false, nil
	}
	return false, s.unexpected("a comma or the closing bracket is expected")
}

func (f *fields) has(id field) bool { return f.raw[id] != nil && f.raw[id][0] != 'n' }

func (f *fields) wrong(id field, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%s: %s", fieldNames[id], fmt.Sprintf(format, args...))
	}
}

func (f *fields) text(id field) string {
	if !f.has(id) {
		return ""
	}
	if f.raw[id][0] != '"' {
		f.wrong(id, "a string is expected")
		return ""
	}
	s, ok := unquote(f.raw[id])
	if !ok {
		f.wrong(id, "not Unicode text: bytes that are not UTF-8, or an escape that is half of a character")
	}
	return s
}

func (f *fields) flag(id field) bool {
	if !f.has(id) {
		return false
	}
	switch f.raw[id][0] {
	case 't':
		return true
	case 'f':
		return false
	}
	f.wrong(id, "true or false is expected")
	return false
}

func (f *fields) uint(id field, most uint64) uint64 {
	if !f.has(id) {
		return 0
	}
	n, ok := parseUint(f.raw[id])
	if !ok || n > most {
		f.wrong(id, "a whole number from 0 to %d is expected", most)
		return 0
	}
	return n
}

func (f *fields) u32(id field) uint32 { return uint32(f.uint(id, math.MaxUint32)) }
func (f *fields) u53(id field) uint64 { return f.uint(id, MaxOffset) }

func (f *fields) optU32(id field) *uint32 {
	if !f.has(id) {
		return nil
	}
	n := f.u32(id)
	return &n
}

func (f *fields) optU53(id field) *uint64 {
	if !f.has(id) {
		return nil
	}
	n := f.u53(id)
	return &n
}

// payload reads data or data_b64; the result shares nothing with the text.
func (f *fields) payload() (data []byte, binary bool) {
	if !f.has(fDataB64) {
		if f.raw[fData] == nil {
			return nil, false
		}
		data, err := CompactJSON(f.raw[fData])
		if err != nil && f.err == nil {
			f.err = err
		}
		return append([]byte(nil), data...), false
	}
	text := f.text(fDataB64)
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		f.wrong(fDataB64, "%v", err)
	}
	return data, true
}

// meta reads an object of strings.
func (f *fields) meta() map[string]string {
	if !f.has(fMeta) {
		return nil
	}
	m, err := parseMeta(f.raw[fMeta])
	if err != nil {
		f.wrong(fMeta, "%v", err)
	}
	return m
}

// each reads an array of objects.
func (f *fields) each(id field, visit func(*fields)) {
	if !f.has(id) {
		return
	}
	s := scanner{b: f.raw[id]}
	if s.peek() != '[' {
		f.wrong(id, "an array is expected")
		return
	}
	s.i++
	for n, more := 0, s.peek() != ']'; more; n++ {
		value, _ := s.value()
		f.nested(id, n, value, visit)
		more, _ = s.comma(']')
	}
}

// nested reads an object inside this one, the nth of an array if n is not negative.
func (f *fields) nested(id field, n int, text []byte, visit func(*fields)) {
	if f.err != nil {
		return
	}
	var inner fields
	if text[0] != '{' {
		f.err = fmt.Errorf("%s: an object is expected", path(id, n))
		return
	}
	if err := inner.read(text); err != nil {
		f.err = fmt.Errorf("%s: %w", path(id, n), err)
		return
	}
	visit(&inner)
	if inner.err != nil {
		f.err = fmt.Errorf("%s.%w", path(id, n), inner.err)
	}
}

func path(id field, n int) string {
	if n < 0 {
		return fieldNames[id]
	}
	return fmt.Sprintf("%s[%d]", fieldNames[id], n)
}
