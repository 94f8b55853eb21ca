package gateway

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Whoever connects is told in the windows, is catching up as long as its verdicts are
// out, has caught up once, and is counted when it ends.
func TestWindowsTellComingCatchingUpAndGoing(t *testing.T) {
	w := newWorld(t, nil)
	w.publish("chat:a", `1`)
	heard, seq := make(map[uint64]*gatewayv1.Window), uint64(0)
	load := func() (*presence.Figure, *gatewayv1.Window) {
		seq++
		f := &presence.Figure{Seq: seq}
		w.edge.Load(f)
		for _, v := range f.Windows {
			if had := heard[v.StartMs]; had != nil && !proto.Equal(had, v) {
				t.Errorf("a window changed after it was told:\n%v\n%v", had, v)
			}
			heard[v.StartMs] = v
		}
		sum := new(gatewayv1.Window)
		for _, v := range heard {
			sum.Fresh += v.Fresh
			sum.CaughtUp += v.CaughtUp
			sum.Lost += v.Lost
			sum.Refused += v.Refused
		}
		return f, sum
	}
	w.set(func() { w.away = true })
	a := w.dial()
	a.send(`{"type":"connect","id":1,"attempt":1,"subscriptions":[{"channel":"chat:a","epoch":"7","offset":0}]}`)
	eventually(t, "one client is catching up", func() bool {
		f, sum := load()
		return f.CatchingUp == 1 && f.Movable == 1 && sum.Fresh == 1 && sum.CaughtUp == 0
	})
	w.set(func() { w.away = false })
	eventually(t, "it has caught up", func() bool {
		f, sum := load()
		return f.CatchingUp == 0 && f.Movable == 1 && sum.CaughtUp == 1
	})
	a.conn.Close()
	eventually(t, "it is gone", func() bool {
		f, sum := load()
		return f.Conns == 0 && f.Movable == 0 && sum.Lost == 1 && sum.CaughtUp == 1
	})
}
