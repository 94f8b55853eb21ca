package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
)

// Child is a generator as a process of its own: commands on stdin, lines on stdout.
func Child() error {
	// One thread works; the collector needs a turn now and then.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(200) // an event costs an allocation of 144 bytes
	return Run(os.Stdin, os.Stdout)
}

const (
	perChild   = 15_000 // clients of one child
	closeGrace = 5 * time.Second
	childCheck = time.Second // how often it is looked whether a child has ended
)

// ParentConfig says how child processes are started.
type ParentConfig struct {
	// Command runs Child; default: this program with the argument "loadgen".
	Command []string
	Env     []string // added to ours
	// Children is their number; 0: one for each 15,000 clients.
	Children int
	// Index of the first child among all generators of the machine: gives it source
	// addresses of its own.
	Index int
}

// Parent drives one or more children. Its methods may be called from one goroutine at a
// time, Up and Deliveries from any.
type Parent struct {
	children []*child

	mu      sync.Mutex    // guards the children's figures and changed
	changed chan struct{} // closed and replaced at each status
}

type child struct {
	*process.Process
	most  int       // clients
	lines chan line // all but status

	// guarded by Parent.mu
	up         int
	gone       int
	deliveries uint64
	last       string // why it ended, by its own word
}

// Start runs children for cfg.Max clients in all, each with its own numbers and, if
// the targets are on the loopback, source addresses. None connects yet: see Want.
func Start(ctx context.Context, pc ParentConfig, cfg Config) (*Parent, error) {
	n := pc.Children
	if n == 0 {
		n = (cfg.Max + perChild - 1) / perChild
	}
	if len(pc.Command) == 0 {
		var err error
		if pc.Command, err = process.Self("loadgen"); err != nil {
			return nil, err
		}
	}
	p := &Parent{changed: make(chan struct{})}
	for i := range n {
		own := cfg
		own.First = cfg.First + cfg.Max*i/n
		own.Max = cfg.Max*(i+1)/n - cfg.Max*i/n
		if len(own.Sources) == 0 && onLoopback(cfg.Targets) {
			own.Sources = Loopback(pc.Index+i, own.Max)
		}
		// The bounds are of all children together.
		own.Rate = share(cfg.Rate, i, n)
		own.InFlight = max(share(cfg.InFlight, i, n), 1)
		if cfg.Rate > 0 {
			own.Rate = max(own.Rate, 1)
		}
		c, err := p.spawn(pc, own.Max)
		if err == nil {
			_, err = p.ask(ctx, c, command{Cmd: cmdStart, Config: &own}, lineReady)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("load generator: %w", err), p.Close())
		}
	}
	return p, nil
}

func share(whole, i, n int) int { return whole*(i+1)/n - whole*i/n }

func onLoopback(targets []string) bool {
	for _, t := range targets {
		if parsed, err := parseTarget(t); err != nil || !parsed.addr.Addr().IsLoopback() {
			return false
		}
	}
	return true
}

func (p *Parent) spawn(pc ParentConfig, most int) (*child, error) {
	c := &child{most: most, lines: make(chan line, 4)}
	var err error
	c.Process, err = process.Start(process.Config{
		Name: "load generator", Command: pc.Command, Env: pc.Env, Line: func(text []byte) { p.hear(c, text) },
	})
	if err == nil {
		p.children = append(p.children, c)
	}
	return c, err
}

// hear takes a line of a child.
func (p *Parent) hear(c *child, text []byte) {
	var v line
	if json.Unmarshal(text, &v) != nil {
		return
	}
	switch v.Type {
	case lineStatus, lineError:
		p.mu.Lock()
		defer p.mu.Unlock()
		if v.Type == lineError {
			c.last = v.Message
			return
		}
		c.up, c.gone, c.deliveries = v.Up, v.Gone, v.Deliveries
		close(p.changed)
		p.changed = make(chan struct{})
	default:
		select {
		case c.lines <- v:
		default: // answers to a question that was given up
		}
	}
}

// ask sends a command and waits for the line that answers it.
func (p *Parent) ask(ctx context.Context, c *child, cmd command, answer string) (line, error) {
	if err := p.tell(c, cmd); err != nil {
		return line{}, err
	}
	for {
		select {
		case v := <-c.lines:
			if v.Type == answer {
				return v, nil
			}
		case <-c.Done():
			return line{}, p.ended(c)
		case <-ctx.Done():
			return line{}, ctx.Err()
		}
	}
}

func (p *Parent) tell(c *child, cmd command) error {
	err := c.Tell(cmd)
	if err == nil {
		return nil
	}
	select {
	case <-c.Done():
		return p.ended(c)
	case <-time.After(closeGrace):
		return err
	}
}

func (p *Parent) ended(c *child) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.last != "" {
		return fmt.Errorf("load generator ended: %s", c.last)
	}
	return fmt.Errorf("load generator ended with exit code %d", c.ExitCode())
}

// Want has the first n clients connected, those of all children taken evenly. It
// does not wait; n may only rise.
func (p *Parent) Want(n int) error {
	total := 0
	for _, c := range p.children {
		total += c.most
	}
	before := 0
	for _, c := range p.children {
		own := n*(before+c.most)/total - n*before/total
		before += c.most
		if err := p.tell(c, command{Cmd: cmdWant, N: own}); err != nil {
			return err
		}
	}
	return nil
}

// Mark begins a phase: the next Report's phase counts from here.
func (p *Parent) Mark(ctx context.Context, name string) error {
	return p.tellAll(ctx, command{Cmd: cmdMark, Name: name})
}

// Notify makes each child tell at once when it has got another n deliveries, beside
// its status every 200 ms; 0: no more.
func (p *Parent) Notify(ctx context.Context, n int) error {
	return p.tellAll(ctx, command{Cmd: cmdNotify, N: n})
}

// Report merges what all children saw.
func (p *Parent) Report(ctx context.Context) (*Report, error) {
	var merged *Report
	for _, c := range p.children {
		v, err := p.ask(ctx, c, command{Cmd: cmdReport}, lineReport)
		if err != nil {
			return nil, err
		}
		switch {
		case v.Report == nil:
			return nil, errors.New("empty report")
		case merged == nil:
			merged = v.Report
		default:
			merged.Merge(v.Report)
		}
	}
	return merged, nil
}

// Up is how many clients are connected, as last told.
func (p *Parent) Up() int {
	up, _, _ := p.figures()
	return up
}

// Deliveries is how many events have come in all, as last told.
func (p *Parent) Deliveries() uint64 {
	_, n, _ := p.figures()
	return n
}

func (p *Parent) figures() (up int, deliveries uint64, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.children {
		up += c.up
		deliveries += c.deliveries
	}
	return up, deliveries, p.changed
}

// Usage is the memory of all children now, in bytes, and the processor time that they
// have used.
func (p *Parent) Usage() (resident int64, cpu time.Duration) {
	for _, c := range p.children {
		now, _ := c.Resident()
		resident += now
		cpu += c.CPU()
	}
	return resident, cpu
}

// most is how many clients there are, and how many of them stay away for good.
func (p *Parent) most() (clients, gone int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.children {
		clients += c.most
		gone += c.gone
	}
	return clients, gone
}

// AwaitUp waits until n clients are connected. It fails once too many of them stay
// away for good: their policy lets them, or there is none.
func (p *Parent) AwaitUp(ctx context.Context, n int) error {
	return p.await(ctx, n, func(up int, _ uint64) bool { return up >= n })
}

// AwaitDeliveries waits until n events have come in all.
func (p *Parent) AwaitDeliveries(ctx context.Context, n uint64) error {
	return p.await(ctx, 0, func(_ int, deliveries uint64) bool { return deliveries >= n })
}

// await waits for enough, which needs that many clients.
func (p *Parent) await(ctx context.Context, clients int, enough func(up int, deliveries uint64) bool) error {
	for {
		up, deliveries, changed := p.figures()
		if enough(up, deliveries) {
			return nil
		}
		for _, c := range p.children {
			if !c.Running() {
				return p.ended(c)
			}
		}
		if most, gone := p.most(); clients > most-gone {
			return fmt.Errorf("%d clients stay away for good, %d are up", gone, up)
		}
		select {
		case <-changed:
		case <-time.After(childCheck):
		case <-ctx.Done():
			return fmt.Errorf("%w: %d clients up, %d deliveries", ctx.Err(), up, deliveries)
		}
	}
}

// Close ends all children, which reset their sockets, and waits for them: 5 s, then
// they are killed. Idempotent.
func (p *Parent) Close() error {
	var errs []error
	for _, c := range p.children { // all at once: each has thousands of sockets
		_ = c.Tell(command{Cmd: cmdStop}) // the end of its input says the same
	}
	for _, c := range p.children {
		errs = append(errs, c.CloseInput(closeGrace))
	}
	p.mu.Lock()
	p.children = nil
	p.mu.Unlock()
	return errors.Join(errs...)
}
