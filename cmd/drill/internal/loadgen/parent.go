package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// Child is a generator as a process of its own: commands on stdin, lines on stdout.
func Child() error {
	// One thread works; the collector needs a turn now and then.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	return Run(os.Stdin, os.Stdout)
}

const (
	perChild   = 15_000 // clients of one child
	closeGrace = 5 * time.Second
)

// ParentConfig says how child processes are started.
type ParentConfig struct {
	// Command runs Child; default: this program with the argument "loadgen".
	Command []string
	Env     []string  // added to ours
	Stderr  io.Writer // of the children; nil: ours
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
	cmd   *exec.Cmd
	in    io.WriteCloser
	most  int           // clients
	lines chan line     // all but status; the reader closes it at the end
	done  chan struct{} // closed when the process has ended and err was set
	err   error

	// guarded by Parent.mu
	up         int
	gone       int
	deliveries uint64
}

// Start runs children for cfg.Max clients in all, each with its own numbers and, if
// the targets are on the loopback, source addresses. None connects yet: see Want.
func Start(ctx context.Context, pc ParentConfig, cfg Config) (*Parent, error) {
	n := pc.Children
	if n == 0 {
		n = (cfg.Max + perChild - 1) / perChild
	}
	if len(pc.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		pc.Command = []string{self, "loadgen"}
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
	cmd := exec.Command(pc.Command[0], pc.Command[1:]...)
	cmd.Env = append(os.Environ(), pc.Env...)
	cmd.Stderr = pc.Stderr
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in, most: most, lines: make(chan line, 4), done: make(chan struct{})}
	p.children = append(p.children, c)
	// Reads the child's lines until its stdout ends; Close ends the child and waits.
	go p.read(c, out)
	return c, nil
}

func (p *Parent) read(c *child, out io.Reader) {
	r := bufio.NewReaderSize(out, 64<<10)
	var last string
	for {
		text, err := r.ReadBytes('\n')
		if err != nil {
			break
		}
		var v line
		if json.Unmarshal(text, &v) != nil {
			continue
		}
		switch v.Type {
		case lineStatus:
			p.mu.Lock()
			c.up, c.gone, c.deliveries = v.Up, v.Gone, v.Deliveries
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		case lineError:
			last = v.Message
		default:
			select {
			case c.lines <- v:
			default: // answers to a question that was given up
			}
		}
	}
	c.err = c.cmd.Wait()
	if last != "" {
		c.err = errors.New(last)
	}
	close(c.done)
	p.mu.Lock()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
}

// ask sends a command and waits for the line that answers it.
func (p *Parent) ask(ctx context.Context, c *child, cmd command, answer string) (line, error) {
	if err := c.tell(cmd); err != nil {
		return line{}, err
	}
	for {
		select {
		case v := <-c.lines:
			if v.Type == answer {
				return v, nil
			}
		case <-c.done:
			return line{}, c.ended()
		case <-ctx.Done():
			return line{}, ctx.Err()
		}
	}
}

func (c *child) tell(cmd command) error {
	text, err := json.Marshal(cmd)
	if err != nil {
		return err
	}
	if _, err := c.in.Write(append(text, '\n')); err != nil {
		select {
		case <-c.done:
			return c.ended()
		case <-time.After(closeGrace):
			return err
		}
	}
	return nil
}

func (c *child) ended() error {
	if c.err != nil {
		return fmt.Errorf("child ended: %w", c.err)
	}
	return errors.New("child ended")
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
		if err := c.tell(command{Cmd: cmdWant, N: own}); err != nil {
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
			select {
			case <-c.done:
				return c.ended()
			default:
			}
		}
		if most, gone := p.most(); clients > most-gone {
			return fmt.Errorf("%d clients stay away for good, %d are up", gone, up)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d clients up, %d deliveries", ctx.Err(), up, deliveries)
		}
	}
}

// Close ends all children, which reset their sockets, and waits for them: 5 s, then
// they are killed. Idempotent.
func (p *Parent) Close() error {
	for _, c := range p.children {
		_ = c.tell(command{Cmd: cmdStop})
		_ = c.in.Close()
	}
	var err error
	for _, c := range p.children {
		timer := time.NewTimer(closeGrace)
		select {
		case <-c.done:
		case <-timer.C:
			_ = c.cmd.Process.Kill()
			<-c.done
			err = errors.Join(err, errors.New("a load generator had to be killed"))
		}
		timer.Stop()
	}
	p.mu.Lock()
	p.children = nil
	p.mu.Unlock()
	return err
}
