package wire

import (
	"encoding/base64"
	"strconv"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// AppendEvent appends the JSON form of an event push. It is the hot path: once
// for each event and edge, without allocating if dst has room. Data and meta must
// be compact JSON already: the router has seen to it when they were published.
func AppendEvent(dst []byte, channel string, e *gatewayv1.BusEvent) []byte {
	dst = append(dst, `{"type":"event","channel":`...)
	dst = appendString(dst, channel)
	dst = append(dst, ',')
	dst = appendEventBody(dst, e.Offset, e.Data, e.Binary, e.TimeMs, e.From)
	if len(e.Meta) > 0 {
		dst = append(dst, `,"meta":`...)
		dst = append(dst, e.Meta...)
	}
	return append(dst, '}')
}

func appendEventBody(dst []byte, offset uint64, data []byte, binary bool, timeMS uint64, from string) []byte {
	dst = append(dst, `"offset":`...)
	dst = strconv.AppendUint(dst, offset, 10)
	dst = appendData(dst, data, binary)
	dst = append(dst, `,"time_ms":`...)
	dst = strconv.AppendUint(dst, timeMS, 10)
	if from != "" {
		dst = append(dst, `,"from":`...)
		dst = appendString(dst, from)
	}
	return dst
}

func appendData(dst, data []byte, binary bool) []byte {
	switch {
	case binary:
	case len(data) == 0:
		return append(dst, `,"data":null`...)
	default:
		dst = append(dst, `,"data":`...)
		return append(dst, data...)
	}
	dst = append(dst, `,"data_b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, '"')
}
