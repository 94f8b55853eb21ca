package wire

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxJSONDepth is how deep arrays and objects may stand in one another. Readers in
// many languages recurse and give up near 1,000; this one does not recurse.
const MaxJSONDepth = 512

// syntaxError says where a text stops being JSON.
type syntaxError struct {
	offset int
	what   string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("not JSON at byte %d: %s", e.offset, e.what) }

func bad(i int, what string) error { return &syntaxError{i, what} }

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// scanner checks one JSON value against RFC 8259 without recursion: the kind of
// each open bracket is one bit.
type scanner struct {
	b      []byte
	i      int
	spaced bool // white space was seen between tokens
	depth  int
	object [MaxJSONDepth / 64]uint64
}

// scanValue returns where the value that starts at or after i ends, and whether
// there is white space to drop before or in it.
func scanValue(b []byte, i int) (end int, spaced bool, err error) {
	s := scanner{b: b, i: i}
	for {
		complete, err := s.begin()
		if err != nil {
			return 0, false, err
		}
		for complete && s.depth > 0 {
			if complete, err = s.next(); err != nil {
				return 0, false, err
			}
		}
		if complete {
			return s.i, s.spaced, nil
		}
	}
}

// begin reads the value at s.i. It is complete unless a bracket opened with
// something in it; then the next value is due.
func (s *scanner) begin() (complete bool, err error) {
	switch c := s.peek(); {
	case c == '{':
		if err = s.push(true); err != nil {
			return false, err
		}
		if s.peek() == '}' {
			s.pop()
			return true, nil
		}
		return false, s.fieldName()
	case c == '[':
		if err = s.push(false); err != nil {
			return false, err
		}
		if s.peek() == ']' {
			s.pop()
			return true, nil
		}
		return false, nil
	case c == '"':
		s.i, err = scanString(s.b, s.i)
	case c == '-' || c >= '0' && c <= '9':
		s.i, err = scanNumber(s.b, s.i)
	case c == 't':
		err = s.literal("true")
	case c == 'f':
		err = s.literal("false")
	case c == 'n':
		err = s.literal("null")
	default:
		err = s.unexpected("a value is expected")
	}
	return true, err
}

// next reads what follows a value inside a bracket: complete if the bracket
// closes, else another value is due.
func (s *scanner) next() (complete bool, err error) {
	object := s.object[(s.depth-1)/64]>>((s.depth-1)%64)&1 == 1
	switch c := s.peek(); {
	case c == ',':
		s.i++
		if object {
			return false, s.fieldName()
		}
		return false, nil
	case object && c == '}', !object && c == ']':
		s.pop()
		return true, nil
	}
	return false, s.unexpected("a comma or the closing bracket is expected")
}

func (s *scanner) fieldName() (err error) {
	if s.peek() != '"' {
		return s.unexpected("a field's name is expected")
	}
	if s.i, err = scanString(s.b, s.i); err != nil {
		return err
	}
	if s.peek() != ':' {
		return s.unexpected("a colon is expected")
	}
	s.i++
	return nil
}

// peek skips white space and returns the byte there, 0 at the end of the text.
func (s *scanner) peek() byte {
	i := skipSpace(s.b, s.i)
	if i > s.i {
		s.spaced = true
		s.i = i
	}
	if i == len(s.b) {
		return 0
	}
	return s.b[i]
}

func (s *scanner) unexpected(what string) error {
	if s.i == len(s.b) {
		what = "the text ends too early"
	}
	return bad(s.i, what)
}

func (s *scanner) push(object bool) error {
	if s.depth == MaxJSONDepth {
		return bad(s.i, fmt.Sprintf("nested deeper than %d", MaxJSONDepth))
	}
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	s.object[word] &^= bit
	if object {
		s.object[word] |= bit
	}
	s.depth++
	s.i++
	return nil
}

func (s *scanner) pop() {
	s.depth--
	s.i++
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return bad(s.i, "a value is expected")
	}
	s.i += len(word)
	return nil
}

// scanString returns the index behind the string that opens at i.
func scanString(b []byte, i int) (int, error) {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c < ' ':
			return 0, bad(i, "a control character in a string")
		case c == '\\':
			i++
			if i < len(b) && b[i] == 'u' {
				if _, ok := hex4(b, i+1); !ok {
					return 0, bad(i, "four hexadecimal digits are expected")
				}
				i += 4
			} else if i < len(b) && bytes.IndexByte([]byte(`"\/bfnrt`), b[i]) < 0 {
				return 0, bad(i, "an unknown escape")
			}
		}
	}
	return 0, bad(len(b), "the text ends in a string")
}

func hex4(b []byte, i int) (r rune, ok bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// scanNumber returns the index behind the number that starts at i.
func scanNumber(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
	}
	var n int
	leadingZero := i < len(b) && b[i] == '0'
	if i, n = digits(b, i); n == 0 || leadingZero && n > 1 {
		return 0, bad(i, "a number is expected")
	}
	if i < len(b) && b[i] == '.' {
		if i, n = digits(b, i+1); n == 0 {
			return 0, bad(i, "a digit is expected")
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i, n = digits(b, i); n == 0 {
			return 0, bad(i, "a digit is expected")
		}
	}
	return i, nil
}

func digits(b []byte, i int) (end, n int) {
	start := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i, i - start
}

// unquote gives the text of a string that scanString accepted; false: it is no
// Unicode text (bytes that are not UTF-8, half of a surrogate pair). Replacing
// such things silently would make two names one.
func unquote(raw []byte) (string, bool) {
	raw = raw[1 : len(raw)-1]
	if !utf8.Valid(raw) {
		return "", false
	}
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return string(raw), true
	}
	out := append(make([]byte, 0, len(raw)), raw[:i]...)
	for i < len(raw) {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		r, size := unescape(raw[i:])
		if size == 0 {
			return "", false
		}
		out = utf8.AppendRune(out, r)
		i += size
	}
	return string(out), true
}

// unescape reads the escape at the start of b; size 0: half of a surrogate pair.
func unescape(b []byte) (r rune, size int) {
	switch b[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, _ = hex4(b, 2)
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
			return 0, 0
		}
		low, _ := hex4(b, 8)
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return 0, 0
		}
		return r, 12
	}
	return rune(b[1]), 2 // one of " \ /
}
