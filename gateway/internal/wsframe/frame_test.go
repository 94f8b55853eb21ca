package wsframe

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

func TestFramesAreTheRFCsBytes(t *testing.T) {
	// RFC 6455 5.7.
	hello := []byte("Hello")
	for _, c := range []struct {
		name      string
		got, want []byte
	}{
		{"text", AppendFrame(nil, Text, hello), []byte{0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f}},
		{"masked text", AppendMaskedFrame(nil, Text, hello, [4]byte{0x37, 0xfa, 0x21, 0x3d}),
			[]byte{0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58}},
		{"ping", AppendFrame(nil, Ping, hello), []byte{0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f}},
		{"256 bytes", AppendHeader(nil, Binary, 256), []byte{0x82, 0x7e, 0x01, 0x00}},
		{"64 KiB", AppendHeader(nil, Binary, 65536), []byte{0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0}},
		{"125 bytes", AppendHeader(nil, Text, 125), []byte{0x81, 125}},
		{"126 bytes", AppendHeader(nil, Text, 126), []byte{0x81, 126, 0, 126}},
		{"65535 bytes", AppendHeader(nil, Text, 65535), []byte{0x81, 126, 0xff, 0xff}},
		{"close", AppendClose(nil, 4001, "shutdown"), append([]byte{0x88, 10, 0x0f, 0xa1}, "shutdown"...)},
		{"close without code", AppendClose(nil, 0, "unseen"), []byte{0x88, 0}},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: % x, want % x", c.name, c.got, c.want)
		}
	}
}

func TestHeaderSizeIsWhatAppendHeaderWrites(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 1 << 30} {
		if got := len(AppendHeader(nil, Text, n)); got != HeaderSize(n) || got > MaxHeader {
			t.Errorf("%d bytes: header of %d, HeaderSize %d", n, got, HeaderSize(n))
		}
	}
}

func TestCloseReasonIsCutBetweenCharacters(t *testing.T) {
	b := AppendClose(nil, 4200, "a"+strings.Repeat("é", 100))
	h, err := ws.ReadHeader(bytes.NewReader(b))
	if err != nil || h.Length != 2+1+122 || len(b) != 2+int(h.Length) {
		t.Fatalf("header %+v, %v, %d bytes", h, err, len(b))
	}
	if !utf8.Valid(b[4:]) {
		t.Fatal("the reason was cut inside a character")
	}
}

func TestOversizeControlFramePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	AppendFrame(nil, Pong, make([]byte, MaxControl+1))
}
