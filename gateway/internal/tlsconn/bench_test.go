package tlsconn

import (
	"crypto/tls"
	"errors"
	"runtime"
	"testing"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// handshake joins a server conn and a client in memory.
func handshake(b testing.TB, cfg *tls.Config, client *tls.Config) (*Conn, func()) {
	b.Helper()
	raw, far := poller.MemPipe(64 << 10)
	ended := make(chan error, 1)
	go func() { ended <- tls.Client(far, client).Handshake() }() // ends with far
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
			return c, func() { raw.Close(); far.Close() }
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
				_, end := handshake(b, cfg, &tls.Config{InsecureSkipVerify: true})
				end()
			}
		})
	}
}

// BenchmarkIdleHeap tells the heap of an idle conn, its client's end and the pipe
// between them taken off.
func BenchmarkIdleHeap(b *testing.B) {
	for name, curves := range exchanges {
		b.Run(name, func(b *testing.B) {
			cfg := serverConfig(b)
			cfg.CurvePreferences = curves
			client := &tls.Config{InsecureSkipVerify: true}
			b.ReportAllocs()
			for b.Loop() {
				const n = 500
				conns := make([]*Conn, n)
				ends := make([]func(), n)
				for i := range conns {
					conns[i], ends[i] = handshake(b, cfg, client)
				}
				with := heap()
				for i := range conns {
					conns[i].raw = nil
					conns[i] = nil
				}
				b.ReportMetric(float64(with-heap())/n, "B/conn")
				for _, end := range ends {
					end()
				}
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
