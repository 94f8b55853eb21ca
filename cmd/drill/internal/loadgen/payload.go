package loadgen

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
	payloadHead   = `{"lg":"`
	payloadMiddle = `","pad":"`
	payloadEnd    = `"}`
	payloadDigits = 16 + 16 + 8

	// MinPayloadBytes is the size of a payload without padding.
	MinPayloadBytes = len(payloadHead) + payloadDigits + len(payloadMiddle) + len(payloadEnd)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendPayload appends the data of an event: its number in the channel, which its
// publisher counts from 1, and when it was published; size bytes in all, or
// MinPayloadBytes.
func AppendPayload(dst []byte, channel string, seq uint64, sent time.Time, size int) []byte {
	dst = append(dst, payloadHead...)
	at := len(dst)
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:], seq)
	binary.BigEndian.PutUint64(raw[8:], uint64(sent.UnixNano()))
	dst = hex.AppendEncode(dst, raw[:])
	dst = append(dst, "00000000"+payloadMiddle...)
	pad := len(dst)
	for range size - MinPayloadBytes {
		dst = append(dst, 'x')
	}
	sum := payloadSum([]byte(channel), dst[at:at+32], dst[pad:])
	hex.Encode(dst[at+32:], binary.BigEndian.AppendUint32(nil, sum))
	return append(dst, payloadEnd...)
}

func payloadSum(channel, numbers, pad []byte) uint32 {
	sum := crc32.Update(0, castagnoli, channel)
	sum = crc32.Update(sum, castagnoli, numbers)
	return crc32.Update(sum, castagnoli, pad)
}

// readPayload reads and checks the payload at the start of b; what follows it is not
// looked at.
func readPayload(b, channel []byte) (seq uint64, sentNS int64, ok bool) {
	const padAt = len(payloadHead) + payloadDigits + len(payloadMiddle)
	if len(b) < MinPayloadBytes || string(b[:len(payloadHead)]) != payloadHead ||
		string(b[padAt-len(payloadMiddle):padAt]) != payloadMiddle {
		return 0, 0, false
	}
	end := padAt
	for end < len(b) && b[end] != '"' {
		end++
	}
	numbers := b[len(payloadHead):]
	var raw [20]byte
	if _, err := hex.Decode(raw[:], numbers[:payloadDigits]); err != nil {
		return 0, 0, false
	}
	if payloadSum(channel, numbers[:32], b[padAt:end]) != binary.BigEndian.Uint32(raw[16:]) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(raw[:]), int64(binary.BigEndian.Uint64(raw[8:])), true
}
