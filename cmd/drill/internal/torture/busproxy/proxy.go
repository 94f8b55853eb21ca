// Package busproxy stands between a node and its NATS server and is as bad as a
// network may be: it loses, doubles, delays and reorders messages, swallows them
// without a word, hangs up.
//
// The package torture gives each node of a cluster a proxy of its own, and another one
// (Raw) before etcd, for cuts only. Only what the server delivers is touched, message by message, and only subjects that Config.Touch
// names; everything else passes as it comes. Cut and Mend are for connections as a
// whole.
//
// Life: Listen starts, Close ends all connections and waits. Two goroutines for each
// connection, one a direction, and one that accepts; messages that are late are
// written by timers.
//
// Limits: 64 MiB a message; 4,096 late messages a connection, past which they are
// not late. The dice are seeded, the moments are the network's: a seed gives the same
// mixture, not the same run.
//
// Left out on purpose: TLS, and damage to what nodes send.
package busproxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Weather says what happens to messages: each number is the probability for one.
type Weather struct {
	Lose   float64
	Double float64       // it comes again, late
	Late   float64       // it comes late, so that others overtake it
	Most   time.Duration // longest that a late one is held
}

// Config of a Proxy.
type Config struct {
	Target string                    // host:port of the server
	Seed   uint64                    // of the dice
	Touch  func(subject string) bool // which messages; nil: all
	Raw    bool                      // it is not NATS: bytes pass as they come, or not at all
}

// Counts of messages that were touched.
type Counts struct{ Lost, Doubled, Late uint64 }

// Proxy is one address that leads to the server. Its methods may be called from any
// goroutine.
type Proxy struct {
	// immutable after Listen
	cfg      Config
	listener net.Listener
	running  sync.WaitGroup

	// atomic
	weather             atomic.Pointer[Weather]
	lost, doubled, late atomic.Uint64

	mu     sync.Mutex // guards all below
	rng    *rand.Rand
	conns  map[*conn]bool
	cut    bool
	silent chan struct{} // not nil: nothing passes until it is closed
	closed bool
}

// dialTime bounds a connection to the server.
const dialTime = 5 * time.Second

// Listen takes a free port of the loopback.
func Listen(cfg Config) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("bus proxy: %w", err)
	}
	p := &Proxy{cfg: cfg, listener: ln, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), conns: make(map[*conn]bool)}
	p.weather.Store(&Weather{})
	p.running.Go(p.accept) // ends with the listener; Close waits for it
	return p, nil
}

// Addr is host:port for the node.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set changes the weather.
func (p *Proxy) Set(w Weather) { p.weather.Store(&w) }

// Counts of what was done so far.
func (p *Proxy) Counts() Counts { return Counts{p.lost.Load(), p.doubled.Load(), p.late.Load()} }

// Cut ends all connections, and new ones at once, until Mend. Silently: nothing
// passes any more in either direction, and nobody is told.
func (p *Proxy) Cut(silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silent {
		if p.silent == nil {
			p.silent = make(chan struct{})
		}
		return
	}
	p.cut = true
	for c := range p.conns {
		c.close()
	}
}

// Mend lets everything pass again.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	if p.silent != nil {
		close(p.silent)
		p.silent = nil
	}
}

// Close ends everything and waits. Idempotent.
func (p *Proxy) Close() error {
	p.Mend()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.close()
	}
	p.mu.Unlock()
	_ = p.listener.Close() // the second time it says so
	p.running.Wait()
	return nil
}

func (p *Proxy) accept() {
	for {
		nc, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(nc) }) // ends with the connection; Close waits for it
	}
}

func (p *Proxy) serve(node net.Conn) {
	defer node.Close()
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.cfg.Target)
	cancel()
	if err != nil {
		return
	}
	c := &conn{p: p, node: node, server: server, timers: make(map[*time.Timer]bool)}
	defer c.close()
	if !p.add(c) {
		return
	}
	defer p.remove(c)
	var up sync.WaitGroup
	up.Go(c.up) // ends with the connection; waited for below
	c.down()
	c.close()
	up.Wait()
}

func (p *Proxy) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || p.closed {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// pass waits while the proxy is silent.
func (p *Proxy) pass() {
	p.mu.Lock()
	silent := p.silent
	p.mu.Unlock()
	if silent != nil {
		<-silent
	}
}

// fate of one message: how often it comes, and when each time.
func (p *Proxy) fate() []time.Duration {
	w := p.weather.Load()
	p.mu.Lock()
	lose, double, late := p.rng.Float64() < w.Lose, p.rng.Float64() < w.Double, p.rng.Float64() < w.Late
	first, second := time.Duration(0), time.Duration(0)
	if w.Most > 0 {
		first, second = time.Duration(p.rng.Int64N(int64(w.Most))), time.Duration(p.rng.Int64N(int64(w.Most)))
	}
	p.mu.Unlock()
	if lose {
		p.lost.Add(1)
		return nil
	}
	if late {
		p.late.Add(1)
	} else {
		first = 0
	}
	if !double {
		return []time.Duration{first}
	}
	p.doubled.Add(1)
	return []time.Duration{first, second}
}
