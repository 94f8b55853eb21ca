package wsframe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

var testLimits = Limits{MaxFrameBytes: 300, MaxMessageBytes: 400, MaxFragments: 4}

// frame is a client frame, masked, with any first byte.
func frame(first byte, payload string) []byte {
	b := AppendMaskedFrame(nil, Kind(first&0xf), []byte(payload), [4]byte{1, 2, 3, 0xfe})
	b[0] = first
	return b
}

// outcome is what became of a stream: the messages, and how it ended.
func outcome(messages []Message, err error) string {
	var s strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&s, "%v %d %q\n", m.Kind, m.Code, m.Data)
	}
	var e *Error
	if errors.As(err, &e) {
		fmt.Fprintf(&s, "error %d\n", e.Code)
	}
	return s.String()
}

// read gives the pieces to a Reader one by one, as a loop does, each in the same
// buffer, which is scribbled over behind every message.
func read(l *Limits, pieces ...[]byte) string {
	r := NewReader(l)
	var messages []Message
	var buf []byte
	for _, piece := range pieces {
		buf = append(buf[:0], piece...)
		for rest := buf; len(rest) > 0; {
			var m Message
			var err error
			if m, rest, err = r.Next(rest); err != nil {
				return outcome(messages, err)
			}
			if m.Kind == None {
				break
			}
			m.Data = bytes.Clone(m.Data)
			messages = append(messages, m)
		}
		for i := range buf {
			buf[i] = 0xa5
		}
	}
	return outcome(messages, nil)
}

// naive reads the same with gobwas/ws, frame by frame from a stream.
func naive(l *Limits, stream []byte) string {
	var messages []Message
	fail := func(code uint16) string { return outcome(messages, &Error{Code: code}) }
	r := bytes.NewReader(stream)
	state := ws.StateServerSide
	var open Message
	var frames int
	for {
		before := r.Len()
		h, err := ws.ReadHeader(r)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return outcome(messages, nil)
		case err != nil:
			return fail(1002)
		}
		size := HeaderSize(int(h.Length))
		if h.Masked {
			size += 4
		}
		if before-r.Len() != size || ws.CheckHeader(h, state) != nil {
			return fail(1002)
		}
		if !h.OpCode.IsControl() && (h.Length > int64(l.MaxFrameBytes) ||
			h.Length+int64(len(open.Data)) > int64(l.MaxMessageBytes) || frames == l.MaxFragments) {
			return fail(1009)
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(r, payload); err != nil {
			return outcome(messages, nil)
		}
		for i := range payload {
			payload[i] ^= h.Mask[i%4]
		}
		if h.OpCode.IsControl() {
			m := Message{Kind: Kind(h.OpCode), Data: payload}
			if h.OpCode == ws.OpClose {
				code, reason := ws.ParseCloseFrameData(payload)
				iana := code >= 1012 && code <= 1014
				switch {
				case len(payload) == 0:
					code = 1005
				case len(payload) == 1, code > 4999, !iana && ws.CheckCloseFrameData(code, "") != nil:
					return fail(1002)
				case !utf8.ValidString(reason):
					return fail(1007)
				}
				m.Code = uint16(code)
			}
			messages = append(messages, m)
			continue
		}
		frames++
		if h.OpCode != ws.OpContinuation {
			open.Kind = Kind(h.OpCode)
		}
		open.Data = append(open.Data, payload...)
		state = state.Set(ws.StateFragmented)
		if !h.Fin {
			continue
		}
		if open.Kind == Text && !utf8.Valid(open.Data) {
			return fail(1007)
		}
		messages = append(messages, open)
		open, frames, state = Message{}, 0, ws.StateServerSide
	}
}

var streams = []struct {
	name   string
	stream []byte
	want   string
}{
	{"nothing", nil, ""},
	{"text", frame(0x81, "héllo"), "text 0 \"héllo\"\n"},
	{"empty text", frame(0x81, ""), "text 0 \"\"\n"},
	{"binary", frame(0x82, "\xff\x00"), "binary 0 \"\\xff\\x00\"\n"},
	{"two in one read", append(frame(0x81, "a"), frame(0x81, "b")...), "text 0 \"a\"\ntext 0 \"b\"\n"},
	{"126 bytes", frame(0x81, strings.Repeat("x", 126)), fmt.Sprintf("text 0 %q\n", strings.Repeat("x", 126))},
	{"ping, pong", append(frame(0x89, "p"), frame(0x8a, "")...), "ping 0 \"p\"\npong 0 \"\"\n"},
	{"fragments", bytes.Join([][]byte{frame(0x01, "a\xc3"), frame(0x00, ""), frame(0x80, "\xa9b")}, nil), "text 0 \"aéb\"\n"},
	{"ping between fragments", bytes.Join([][]byte{frame(0x02, "a"), frame(0x89, "p"), frame(0x80, "b"), frame(0x81, "c")}, nil),
		"ping 0 \"p\"\nbinary 0 \"ab\"\ntext 0 \"c\"\n"},
	{"empty first fragment", append(frame(0x01, ""), frame(0x80, "b")...), "text 0 \"b\"\n"},
	{"close", frame(0x88, "\x03\xe8bye"), "close 1000 \"\\x03\\xe8bye\"\n"},
	{"close without code", frame(0x88, ""), "close 1005 \"\"\n"},
	{"close 4999", frame(0x88, "\x13\x87"), "close 4999 \"\\x13\\x87\"\n"},
	{"close 1013", frame(0x88, "\x03\xf5"), "close 1013 \"\\x03\\xf5\"\n"},

	{"half a close code", frame(0x88, "\x03"), "error 1002\n"},
	{"close 999", frame(0x88, "\x03\xe7"), "error 1002\n"},
	{"close 1004", frame(0x88, "\x03\xec"), "error 1002\n"},
	{"close 1005", frame(0x88, "\x03\xed"), "error 1002\n"},
	{"close 1006", frame(0x88, "\x03\xee"), "error 1002\n"},
	{"close 1015", frame(0x88, "\x03\xf7"), "error 1002\n"},
	{"close 1016", frame(0x88, "\x03\xf8"), "error 1002\n"},
	{"close 2999", frame(0x88, "\x0b\xb7"), "error 1002\n"},
	{"close 5000", frame(0x88, "\x13\x88"), "error 1002\n"},
	{"close reason not UTF-8", frame(0x88, "\x03\xe8\xff"), "error 1007\n"},
	{"no mask", []byte{0x81, 0x01, 'a'}, "error 1002\n"},
	{"RSV1", frame(0xc1, "a"), "error 1002\n"},
	{"RSV3", frame(0x91, "a"), "error 1002\n"},
	{"opcode 3", frame(0x83, "a"), "error 1002\n"},
	{"opcode 11", frame(0x8b, "a"), "error 1002\n"},
	{"fragmented ping", frame(0x09, "a"), "error 1002\n"},
	{"ping of 126", frame(0x89, strings.Repeat("x", 126)), "error 1002\n"},
	{"continuation of nothing", frame(0x80, "a"), "error 1002\n"},
	{"continuation behind a message", append(frame(0x81, "a"), frame(0x80, "a")...), "text 0 \"a\"\nerror 1002\n"},
	{"text inside a message", append(frame(0x01, "a"), frame(0x81, "a")...), "error 1002\n"},
	{"length in too many bytes", []byte{0x81, 0xfe, 0, 1, 0, 0, 0, 0, 'a'}, "error 1002\n"},
	{"length in far too many bytes", []byte{0x81, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0}, "error 1002\n"},
	{"length with the top bit", []byte{0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "error 1002\n"},
	{"text not UTF-8", frame(0x81, "a\xff"), "error 1007\n"},
	{"text cut in a character", frame(0x81, "a\xc3"), "error 1007\n"},
	{"fragments not UTF-8", append(frame(0x01, "\xc3"), frame(0x80, "a")...), "error 1007\n"},
	{"frame too big", frame(0x82, strings.Repeat("x", 301)), "error 1009\n"},
	{"frame of 2^62", []byte{0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "error 1009\n"},
	{"message too big", append(frame(0x02, strings.Repeat("x", 300)), frame(0x80, strings.Repeat("x", 101))...), "error 1009\n"},
	{"too many empty fragments", bytes.Join([][]byte{frame(0x02, ""), frame(0, ""), frame(0, ""), frame(0, ""), frame(0x80, "")}, nil), "error 1009\n"},
	{"pings do not count as fragments", bytes.Join([][]byte{
		frame(0x02, "a"), frame(0x89, ""), frame(0x89, ""), frame(0x89, ""), frame(0x89, ""), frame(0x80, "b")}, nil),
		strings.Repeat("ping 0 \"\"\n", 4) + "binary 0 \"ab\"\n"},
}

func TestReaderFollowsTheRFC(t *testing.T) {
	for _, c := range streams {
		if got := read(&testLimits, c.stream); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
		if got := naive(&testLimits, c.stream); got != c.want {
			t.Errorf("%s: the naive twin says\n%swant\n%s", c.name, got, c.want)
		}
	}
}

func TestCutsDoNotMatter(t *testing.T) {
	for _, c := range streams {
		var bytewise [][]byte
		for i := range c.stream {
			bytewise = append(bytewise, c.stream[i:i+1])
			if got := read(&testLimits, c.stream[:i], c.stream[i:]); got != c.want {
				t.Errorf("%s, cut at %d: got\n%swant\n%s", c.name, i, got, c.want)
			}
			for j := i; j < len(c.stream) && len(c.stream) < 40; j++ {
				if got := read(&testLimits, c.stream[:i], c.stream[i:j], c.stream[j:]); got != c.want {
					t.Errorf("%s, cut at %d and %d: got\n%swant\n%s", c.name, i, j, got, c.want)
				}
			}
		}
		if got := read(&testLimits, bytewise...); got != c.want {
			t.Errorf("%s, byte by byte: got\n%swant\n%s", c.name, got, c.want)
		}
	}
}

// cuts splits a stream at random places.
func cuts(rng *rand.Rand, stream []byte) [][]byte {
	var pieces [][]byte
	for len(stream) > 0 {
		n := 1 + rng.IntN(min(len(stream), 1+rng.IntN(200)))
		pieces, stream = append(pieces, stream[:n]), stream[n:]
	}
	return pieces
}

func TestReaderAgreesWithANaiveOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	firsts := []byte{0x81, 0x81, 0x82, 0x01, 0x02, 0x00, 0x00, 0x80, 0x80, 0x89, 0x8a, 0x88}
	for range 3000 {
		var stream []byte
		for range rng.IntN(8) {
			payload := strings.Repeat("é", rng.IntN(80))
			if rng.IntN(20) == 0 {
				payload = payload[:len(payload)/2]
			}
			stream = append(stream, frame(firsts[rng.IntN(len(firsts))], payload)...)
		}
		if len(stream) > 0 && rng.IntN(3) == 0 {
			stream[rng.IntN(len(stream))] ^= 1 << rng.IntN(8)
		}
		want := naive(&testLimits, stream)
		if got := read(&testLimits, stream); got != want {
			t.Fatalf("% x: got\n%swant\n%s", stream, got, want)
		}
		if got := read(&testLimits, cuts(rng, stream)...); got != want {
			t.Fatalf("% x in pieces: got\n%swant\n%s", stream, got, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	for i, c := range streams {
		f.Add(c.stream, uint64(i))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		want := naive(&testLimits, stream)
		if got := read(&testLimits, stream); got != want {
			t.Fatalf("got\n%swant\n%s", got, want)
		}
		if got := read(&testLimits, cuts(rand.New(rand.NewPCG(seed, 0)), stream)...); got != want {
			t.Fatalf("in pieces: got\n%swant\n%s", got, want)
		}
	})
}

func TestAWholeMessageIsNotCopied(t *testing.T) {
	r := NewReader(&testLimits)
	b := append(frame(0x81, "one"), frame(0x82, "two")...)
	m, rest, err := r.Next(b)
	if err != nil || string(m.Data) != "one" || &m.Data[0] != &b[6] || cap(m.Data) != 3 {
		t.Fatalf("%q, %v: not in the caller's bytes, or free to grow into the next frame", m.Data, err)
	}
	if m, _, err = r.Next(rest); err != nil || string(m.Data) != "two" || !r.Between() || r.Held() != 0 {
		t.Fatalf("%q, %v, holds %d", m.Data, err, r.Held())
	}
}

// A peer that declares much and sends little is kept by what it sent.
func TestDeclaredBytesAreNotAllocated(t *testing.T) {
	l := Limits{MaxFrameBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxFragments: 64}
	r := NewReader(&l)
	b := frame(0x82, strings.Repeat("x", 1<<20))[:100]
	if m, _, err := r.Next(b); err != nil || m.Kind != None {
		t.Fatalf("%v, %v", m.Kind, err)
	}
	if r.Between() || r.Held() == 0 || r.Held() > 200 {
		t.Fatalf("holds %d bytes for 86", r.Held())
	}
}

func TestAnErrorIsTheEnd(t *testing.T) {
	r := NewReader(&testLimits)
	for range 3 {
		_, rest, err := r.Next(frame(0x83, "x"))
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeProtocol || rest != nil {
			t.Fatalf("%v, %d bytes left", err, len(rest))
		}
	}
	if _, _, err := r.Next(nil); err == nil {
		t.Fatal("forgot the error")
	}
}

func TestReadingDoesNotAllocate(t *testing.T) {
	wire := frame(0x81, `{"id":17,"type":"ping"}`)
	b := make([]byte, len(wire))
	r := NewReader(&testLimits)
	if n := testing.AllocsPerRun(100, func() {
		copy(b, wire)
		if m, _, err := r.Next(b); err != nil || m.Kind != Text {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations a message", n)
	}
}

func BenchmarkReader(b *testing.B) {
	for _, size := range []int{23, 128, 4096} {
		wire := frame(0x81, strings.Repeat("x", size))
		buf := make([]byte, len(wire))
		r := NewReader(&Limits{1 << 16, 1 << 16, 64})
		b.Run(fmt.Sprintf("text=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, wire)
				if m, _, err := r.Next(buf); err != nil || m.Kind != Text {
					b.Fatal(err)
				}
			}
		})
	}
	wire := frame(0x81, strings.Repeat("x", 128))
	buf := make([]byte, len(wire))
	r := NewReader(&Limits{1 << 16, 1 << 16, 64})
	b.Run("text=128/cut", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			copy(buf, wire)
			r.Next(buf[:50])
			if m, _, err := r.Next(buf[50:]); err != nil || m.Kind != Text {
				b.Fatal(err)
			}
		}
	})
}
