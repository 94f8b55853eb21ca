package tlsconn

import (
	"crypto/tls"
	"errors"
	"runtime"
	"testing"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// handshake joins a server conn and a client in memory.
func handshake(b testing.TB, cfg, clientCfg *tls.Config) (server *Conn, client *tls.Conn, end func()) {
	b.Helper()
	raw, far := poller.MemPipe(64 << 10)
	client = tls.Client(far, clientCfg)
	ended := make(chan error, 1)
	go func() { ended <- client.Handshake() }() // ends with far
	p := poller.NewMem()
	defer p.Close()
	if err := p.Add(raw, 1); err != nil {
		b.Fatal(err)
	}
	h := Begin(raw, cfg, p.Wake)
	buf := make([]byte, 16<<10)
	for {
		if _, err := p.Wait(nil, -1); err != nil {
			b.Fatal(err)
		}
		if n, err := raw.Read(buf); err == nil {
			if err := h.Feed(buf[:n]); err != nil {
				b.Fatal(err)
			}
		} else if !errors.Is(err, poller.ErrAgain) {
			b.Fatal(err)
		}
		c, done, err := h.Step()
		if err != nil {
			b.Fatal(err)
		}
		if done {
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
			if err := p.Remove(raw); err != nil {
				b.Fatal(err)
			}
			return c, client, func() { raw.Close(); far.Close() }
		}
	}
}

var exchanges = map[string][]tls.CurveID{"hybrid": nil, "x25519": {tls.X25519}}

// BenchmarkHandshake measures both ends of a handshake.
func BenchmarkHandshake(b *testing.B) {
	for name, curves := range exchanges {
		b.Run(name, func(b *testing.B) {
			cfg := serverConfig(b)
			cfg.CurvePreferences = curves
			for b.Loop() {
				_, _, end := handshake(b, cfg, &tls.Config{InsecureSkipVerify: true})
				end()
			}
		})
	}
}

// BenchmarkIdleHeap tells the heap of an idle conn that has read a request of 1.5 KB and
// a small frame, as the slope from 1,000 to 8,000 conns; kept: with the buffers that
// crypto/tls keeps.
func BenchmarkIdleHeap(b *testing.B) {
	for name, curves := range exchanges {
		for _, kept := range []bool{true, false} {
			b.Run(name+map[bool]string{true: "/kept"}[kept], func(b *testing.B) {
				cfg := serverConfig(b)
				cfg.CurvePreferences = curves
				defer func(l layout) { where = l }(where)
				where.ok = !kept
				for b.Loop() {
					few, many := idle(b, cfg, 1_000), idle(b, cfg, 8_000)
					b.ReportMetric(float64(many-few)/7_000, "B/conn")
				}
			})
		}
	}
}

// idle is the heap of n conns without sockets.
func idle(b testing.TB, cfg *tls.Config, n int) int64 {
	b.Helper()
	conns := make([]*Conn, n)
	buf := make([]byte, 16<<10)
	before := heap()
	for i := range conns {
		c, client, end := handshake(b, cfg, &tls.Config{InsecureSkipVerify: true})
		for _, size := range []int{1_500, 100} {
			if _, err := client.Write(buf[:size]); err != nil {
				b.Fatal(err)
			}
			if got, err := c.Read(buf); got != size {
				b.Fatalf("%d bytes of %d: %v", got, size, err)
			}
		}
		if _, err := c.Write(buf[:500]); err != nil {
			b.Fatal(err)
		}
		end()
		c.raw, conns[i] = nil, c
	}
	used := heap() - before
	runtime.KeepAlive(conns)
	return used
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
