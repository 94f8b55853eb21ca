package gateway

import (
	"sync"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// encodeEvent makes the one WebSocket frame that all JSON subscribers share.
func encodeEvent(channel string, _ uint64, ev *gatewayv1.BusEvent) []byte {
	body := scratch.Get().(*[]byte)
	*body = wire.AppendEvent((*body)[:0], channel, ev)
	frame := wsframe.AppendFrame(make([]byte, 0, wsframe.HeaderSize(len(*body))+len(*body)), wsframe.Text, *body)
	scratch.Put(body)
	return frame
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}
