package gateway

import "testing"

// A limit that is used up refuses newcomers; who is there stays, and gets company when
// the limit rises.
func TestAnEdgeWithoutMemoryRefusesNewcomers(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Margin = 0 })
	first := w.connect("")
	first.expect(`{"type":"connected"}`)
	s := w.edge.Settings()
	s.MaxMemoryBytes = 1 << 20
	if err := w.edge.Reload(s); err != nil {
		t.Fatal(err)
	}
	w.dial("spillway.v1.json").expect(`{"type":"busy"}`)
	first.send(`{"type":"ping","id":1}`)
	first.expect(`{"type":"pong"}`)
	eventually(t, "the metric says so", func() bool { return w.metric("memory_room_conns") == 1 })
	s.MaxMemoryBytes = 1 << 40
	if err := w.edge.Reload(s); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room", func() bool { return w.edge.gate.Capacity().MaxConns > 100 })
	w.connect("").expect(`{"type":"connected"}`)
}
