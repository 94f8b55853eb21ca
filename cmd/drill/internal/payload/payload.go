// Package payload is the data of the events that drills and benchmarks publish: whoever
// reads one knows its number in the channel and when it was published, and that it is
// undamaged and of this channel. Publishers call Append, the load generator Read.
package payload

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"time"
)

// A payload is JSON of a fixed layout, so that it is checked in place:
//
//	{"lg":"<seq><sent, ns><crc>","pad":"xxx"}
//
// Numbers in hex, 16, 16 and 8 digits. The checksum (CRC-32C) covers the channel's
// name, the numbers and the padding.
const (
	head   = `{"lg":"`
	middle = `","pad":"`
	end    = `"}`
	digits = 16 + 16 + 8

	// MinBytes is the size of a payload without padding.
	MinBytes = len(head) + digits + len(middle) + len(end)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the data of an event: its number in the channel, which its
// publisher counts from 1, and when it was published; size bytes in all, or
// MinBytes.
func Append(dst []byte, channel string, seq uint64, sent time.Time, size int) []byte {
	dst = append(dst, head...)
	at := len(dst)
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:], seq)
	binary.BigEndian.PutUint64(raw[8:], uint64(sent.UnixNano()))
	dst = hex.AppendEncode(dst, raw[:])
	dst = append(dst, "00000000"+middle...)
	pad := len(dst)
	for range size - MinBytes {
		dst = append(dst, 'x')
	}
	sum := sumOf([]byte(channel), dst[at:at+32], dst[pad:])
	hex.Encode(dst[at+32:], binary.BigEndian.AppendUint32(nil, sum))
	return append(dst, end...)
}

func sumOf(channel, numbers, pad []byte) uint32 {
	sum := crc32.Update(0, castagnoli, channel)
	sum = crc32.Update(sum, castagnoli, numbers)
	return crc32.Update(sum, castagnoli, pad)
}

// Read reads and checks the payload at the start of b; what follows it is not
// looked at.
func Read(b, channel []byte) (seq uint64, sentNS int64, ok bool) {
	const padAt = len(head) + digits + len(middle)
	if len(b) < MinBytes || string(b[:len(head)]) != head ||
		string(b[padAt-len(middle):padAt]) != middle {
		return 0, 0, false
	}
	end := padAt
	for end < len(b) && b[end] != '"' {
		end++
	}
	numbers := b[len(head):]
	var raw [20]byte
	if _, err := hex.Decode(raw[:], numbers[:digits]); err != nil {
		return 0, 0, false
	}
	if sumOf(channel, numbers[:32], b[padAt:end]) != binary.BigEndian.Uint32(raw[16:]) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(raw[:]), int64(binary.BigEndian.Uint64(raw[8:])), true
}
