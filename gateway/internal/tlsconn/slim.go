package tlsconn

import (
	"bytes"
	"crypto/tls"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// crypto/tls keeps the buffers in which it read the handshake, and the largest record
// since, for as long as the conn lives: 3.5 KB that an idle conn does not use, more
// than all the rest of it. It has no call that frees them, so they are freed through
// three of its private fields.
//
// What crypto/tls does with these fields may change with any version of Go, even if
// their names and types stay. So this is done only with versions of Go with which the
// tests of this package have run, and only if the fields have the expected names and
// types. With any other version nothing is freed; SlimOff says why.

// tested are the versions of Go with which the tests of this package have run. To add
// one: run them with it, among them TestAnIdleConnKeepsNoBufferOfItsHandshake.
var tested = []string{"go1.26"}

// listed says whether a version, as runtime.Version tells it, is one of these or a
// patch of one. A development version of the next Go is neither.
func listed(version string) bool {
	return slices.ContainsFunc(tested, func(t string) bool {
		rest, ok := strings.CutPrefix(version, t)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == ' ')
	})
}

// SlimOff says why the buffers of idle conns are not freed; empty: they are.
func SlimOff() string {
	switch {
	case where.ok:
		return ""
	case !listed(runtime.Version()):
		return "not tested with " + runtime.Version()
	}
	return "crypto/tls has other fields than expected"
}

// keptBytes is what a conn may keep for its next record: what crypto/tls takes at least
// (576 B), so a client with small messages costs no allocation each.
const keptBytes = 1 << 10

// layout is where a tls.Conn has its buffers; ok: they are there.
type layout struct {
	rawInput uintptr // bytes.Buffer: records as they were read
	input    uintptr // bytes.Reader: plaintext not handed out; lies in rawInput's bytes
	hand     uintptr // bytes.Buffer: handshake messages
	ok       bool
}

// where is immutable. Its zero value frees nothing.
var where = locate(runtime.Version())

func locate(version string) layout {
	if !listed(version) {
		return layout{}
	}
	return look(reflect.TypeFor[tls.Conn]())
}

func look(conn reflect.Type) (l layout) {
	l.ok = true
	find := func(name string, of reflect.Type) uintptr {
		f, ok := conn.FieldByName(name)
		l.ok = l.ok && ok && f.Type == of && len(f.Index) == 1
		return f.Offset
	}
	l.rawInput = find("rawInput", reflect.TypeFor[bytes.Buffer]())
	l.input = find("input", reflect.TypeFor[bytes.Reader]())
	l.hand = find("hand", reflect.TypeFor[bytes.Buffer]())
	return l
}

// slim frees the buffers of c that are empty and larger than most. Its caller is the
// only one that uses c: nobody reads or shakes hands meanwhile.
func slim(c *tls.Conn, most int) {
	if !where.ok {
		return
	}
	at := unsafe.Pointer(c)
	rawInput := (*bytes.Buffer)(unsafe.Add(at, where.rawInput))
	input := (*bytes.Reader)(unsafe.Add(at, where.input))
	hand := (*bytes.Buffer)(unsafe.Add(at, where.hand))
	if rawInput.Cap() > most && rawInput.Len() == 0 && input.Len() == 0 {
		input.Reset(nil)
		*rawInput = bytes.Buffer{}
	}
	if hand.Cap() > most && hand.Len() == 0 {
		*hand = bytes.Buffer{}
	}
}
