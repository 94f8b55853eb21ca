package wire

import (
	"strconv"
	"unicode/utf8"
)

// object writes one JSON object, field by field.
type object struct {
	b     []byte
	first bool
}

func begin(dst []byte) object { return object{append(dst, '{'), true} }

func (o *object) key(name string) {
	if !o.first {
		o.b = append(o.b, ',')
	}
	o.first = false
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) str(name, v string) {
	o.key(name)
	o.b = appendString(o.b, v)
}

func (o *object) optStr(name, v string) {
	if v != "" {
		o.str(name, v)
	}
}

func (o *object) num(name string, v uint64) {
	o.key(name)
	o.b = strconv.AppendUint(o.b, v, 10)
}

func (o *object) optNum(name string, v uint64) {
	if v != 0 {
		o.num(name, v)
	}
}

func (o *object) bool(name string, v bool) {
	o.key(name)
	o.b = strconv.AppendBool(o.b, v)
}

func (o *object) optBool(name string, v bool) {
	if v {
		o.bool(name, v)
	}
}

func (o *object) raw(name string, v []byte) {
	o.key(name)
	o.b = append(o.b, v...)
}

// open and close bracket an object inside this one.
func (o *object) open() {
	o.b = append(o.b, '{')
	o.first = true
}

func (o *object) close() {
	o.b = append(o.b, '}')
	o.first = false
}

func (o *object) end() []byte { return append(o.b, '}') }

// list writes `"name":[…]`, one object an element.
func list[T any](o *object, name string, items []T, element func(*object, T)) {
	o.key(name)
	o.b = append(o.b, '[')
	for i, item := range items {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.open()
		element(o, item)
		o.close()
	}
	o.b = append(o.b, ']')
}

// appendString appends s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
