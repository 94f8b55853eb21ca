package wire

import (
	"bytes"
	"strings"
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func BenchmarkDecodePing(b *testing.B) {
	line := []byte(`{"type":"ping","id":17}`)
	b.ReportAllocs()
	for b.Loop() {
		DecodeClient(line)
	}
}

func BenchmarkDecodeSubscribe(b *testing.B) {
	line := []byte(`{"type":"subscribe","id":17,"channel":"chat:room-7","epoch":"1","offset":12}`)
	b.ReportAllocs()
	for b.Loop() {
		DecodeClient(line)
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	e := &gatewayv1.BusEvent{Offset: 12345, TimeMs: 1764470000000, Data: bytes.Repeat([]byte("x"), 128)}
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendEvent(buf[:0], "chat:room-7", e)
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	e := &gatewayv1.BusEvent{Offset: 12345, TimeMs: 1764470000000, Data: []byte(`"` + strings.Repeat("x", 126) + `"`)}
	line := AppendEvent(nil, "chat:room-7", e)
	b.ReportAllocs()
	for b.Loop() {
		DecodeServer(line)
	}
}

func BenchmarkCompactJSON(b *testing.B) {
	doc := []byte(`[` + strings.TrimSuffix(strings.Repeat(`{"id":9007199254740991,"name":"some words here","ok":true},`, 100), ",") + `]`)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		CompactJSON(doc)
	}
}
