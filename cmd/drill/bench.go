package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	"github.com/spillway-io/spillway/cmd/drill/internal/relay"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// benchCmd measures one edge: memory of idle connections, and deliveries beside a
// bare write(2) loop of the same run. Everything is a process of its own.
type benchCmd struct {
	Conns  int `help:"Connections, each subscribed to one channel." default:"10000"`
	Events int `help:"Events to deliver to all of them, in each phase." default:"30"`
}

const (
	benchChannel = "bench:all"
	benchPayload = 128
	benchTime    = 2 * time.Minute // for any one step
)

// loadgenCmd, relayCmd and floorCmd are the children of benchmarks and drills.
type loadgenCmd struct{}

func (loadgenCmd) Run(*env) error { return loadgen.Child() }

type relayCmd struct{}

func (relayCmd) Run(*env) error { return relay.Child() }

type floorCmd struct{}

func (floorCmd) Run(*env) error {
	return loadgen.Floor(loadgen.FloorConfig{Channel: benchChannel, PayloadBytes: benchPayload}, os.Stdin, os.Stdout)
}

// bench is one run.
type bench struct {
	cmd   *benchCmd
	dir   string
	procs []*exec.Cmd
	pid   int // of the edge
	ops   string
	edge  string
	pub   routerv1.PublisherServiceClient
	seq   uint64
}

// Run prints a table; it ends all that it started.
func (c *benchCmd) Run(e *env) error {
	if c.Conns < 100 || c.Conns > loadgen.MaxConns-500 {
		return run.Usagef("--conns: %d: must be between 100 and %d", c.Conns, loadgen.MaxConns-500)
	}
	dir, err := os.MkdirTemp("", "spillway-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{cmd: c, dir: dir}
	defer b.stop()
	if err := b.start(e.ctx); err != nil {
		return err
	}
	parent, err := b.idle(e.ctx)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := b.fanOut(e.ctx, parent); err != nil {
		return err
	}
	return b.floor(e.ctx)
}

func (b *bench) spawn(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b.procs = append(b.procs, cmd)
	return cmd, nil
}

func (b *bench) stop() {
	for i := len(b.procs) - 1; i >= 0; i-- {
		_ = b.procs[i].Process.Kill()
		_ = b.procs[i].Wait()
	}
}

func benchPort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// start runs NATS and etcd, a router and one edge.
func (b *bench) start(ctx context.Context) error {
	var ports [6]int
	for i := range ports {
		var err error
		if ports[i], err = benchPort(); err != nil {
			return err
		}
	}
	shared := fmt.Sprintf("log_level: warn\nnats: {urls: [\"nats://127.0.0.1:%d\"]}\netcd: {endpoints: [\"http://127.0.0.1:%d\"]}\n", ports[0], ports[1])
	router := fmt.Sprintf("id: router-1\nlisten: 127.0.0.1:%d\nops_listen: 127.0.0.1:%d\nstore: {sqlite: %q}\nnamespaces: {bench: {subscribe: everyone}}\n",
		ports[2], ports[3], filepath.Join(b.dir, "history.db"))
	gateway := fmt.Sprintf("id: edge-1\nlisten: 127.0.0.1:%d\nops_listen: 127.0.0.1:%d\nauth: {anonymous: true}\nlimits: {max_conns: 19900, margin: 100}\nadmission: {fresh_per_second: 20000, fresh_burst: 20000, adaptive: false}\n", ports[4], ports[5])
	files := map[string]string{"router": shared + router, "gateway": shared + gateway}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(b.dir, name+".yaml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if _, err := b.spawn("infra", "--nats-port", strconv.Itoa(ports[0]), "--etcd-port", strconv.Itoa(ports[1])); err != nil {
		return err
	}
	if _, err := b.spawn("router", "--config", filepath.Join(b.dir, "router.yaml")); err != nil {
		return err
	}
	edge, err := b.spawn("gateway", "--config", filepath.Join(b.dir, "gateway.yaml"))
	if err != nil {
		return err
	}
	b.pid, b.ops = edge.Process.Pid, fmt.Sprintf("127.0.0.1:%d", ports[5])
	b.edge = fmt.Sprintf("ws://127.0.0.1:%d/v1/ws", ports[4])
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", ports[2]), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	b.pub = routerv1.NewPublisherServiceClient(conn)
	return b.await(ctx, "the edge to join", func() bool {
		resp, err := http.Get("http://" + b.ops + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK && b.publish(ctx, 1) == nil
	})
}

func (b *bench) await(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, benchTime)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for %s", what)
		case <-ticker.C:
		}
	}
	return nil
}

// publish sends n events in one batch.
func (b *bench) publish(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req := &routerv1.PublishBatchRequest{}
	for range n {
		b.seq++
		data := loadgen.AppendPayload(nil, benchChannel, b.seq, time.Now(), benchPayload)
		req.Publications = append(req.Publications, &routerv1.Publication{
			Channel: benchChannel, Data: &routerv1.Publication_Json{Json: string(data)},
		})
	}
	resp, err := b.pub.PublishBatch(ctx, req)
	if err != nil {
		return err
	}
	for _, r := range resp.Results {
		if f := r.GetFailure(); f != nil {
			return fmt.Errorf("publish: %s", f.Message)
		}
	}
	return nil
}

// figures of the edge.
type figures struct {
	rss        int64
	goroutines int
	cpu        time.Duration
}

func processCPU(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (b *bench) look() (figures, error) {
	f := figures{cpu: processCPU(b.pid)}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	if err != nil {
		return f, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			f.rss = kb << 10
		}
	}
	resp, err := http.Get("http://" + b.ops + "/metrics")
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			f.goroutines, _ = strconv.Atoi(rest)
		}
	}
	return f, err
}

func (b *bench) parent(ctx context.Context, target string, index int) (*loadgen.Parent, error) {
	cfg := loadgen.Default()
	cfg.Targets, cfg.Max, cfg.Rate, cfg.CheckPayload = []string{target}, b.cmd.Conns, 3000, true
	cfg.Subscriptions = []loadgen.Subscription{{Format: benchChannel}}
	return loadgen.Start(ctx, loadgen.ParentConfig{Children: 1, Index: index}, cfg)
}

// idle connects a fifth and then all, and prints what one connection costs.
func (b *bench) idle(ctx context.Context) (*loadgen.Parent, error) {
	p, err := b.parent(ctx, b.edge, 0)
	if err != nil {
		return nil, err
	}
	var at [2]figures
	few := b.cmd.Conns / 5
	for i, n := range []int{few, b.cmd.Conns} {
		if err = p.Want(n); err == nil {
			err = p.AwaitUp(ctx, n)
		}
		if err == nil {
			settle := time.NewTimer(5 * time.Second)
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-settle.C:
				at[i], err = b.look()
			}
			settle.Stop()
		}
		if err != nil {
			p.Close()
			return nil, err
		}
	}
	conns := float64(b.cmd.Conns - few)
	fmt.Printf("idle, %d to %d connections of one subscription, no GC forced:\n", few, b.cmd.Conns)
	fmt.Printf("  RSS per connection         %8.0f B (whole process %.1f MB)\n", float64(at[1].rss-at[0].rss)/conns, float64(at[1].rss)/1e6)
	fmt.Printf("  goroutines per connection  %8.4f (%d in all)\n", float64(at[1].goroutines-at[0].goroutines)/conns, at[1].goroutines)
	return p, nil
}

// fanOut delivers events to all, one at a time and many at once.
func (b *bench) fanOut(ctx context.Context, p *loadgen.Parent) error {
	fmt.Printf("fan-out of %d B to %d connections:\n", benchPayload, b.cmd.Conns)
	if err := p.Notify(ctx, b.cmd.Conns); err != nil {
		return err
	}
	for _, window := range []int{1, 8, b.cmd.Events} {
		before, start := processCPU(b.pid), time.Now()
		done, base := 0, p.Deliveries()
		for done < b.cmd.Events {
			n := min(window, b.cmd.Events-done)
			if err := b.publish(ctx, n); err != nil {
				return err
			}
			done += n
			wait, cancel := context.WithTimeout(ctx, benchTime)
			err := p.AwaitDeliveries(wait, base+uint64(done)*uint64(b.cmd.Conns))
			cancel()
			if err != nil {
				return err
			}
		}
		b.print(fmt.Sprintf("edge, %d outstanding", window), done, processCPU(b.pid)-before, time.Since(start))
	}
	report, err := p.Report(ctx)
	if err != nil {
		return err
	}
	if !report.Total.Clean() {
		return fmt.Errorf("clients saw losses or doubles: %+v", report.Total)
	}
	return p.Close()
}

func (b *bench) print(what string, events int, cpu, wall time.Duration) {
	n := float64(events) * float64(b.cmd.Conns)
	fmt.Printf("  %-22s %9.0f deliveries/s  %6.2f us CPU each\n", what, n/wall.Seconds(), float64(cpu.Microseconds())/n)
}

// floor does the same with a bare write(2) loop.
func (b *bench) floor(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "floor")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	b.procs = append(b.procs, cmd)
	first, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	var ready struct {
		Message string `json:"message"`
	}
	if err := json.Unmarshal(first, &ready); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	p, err := b.parent(ctx, ready.Message, 0)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Want(b.cmd.Conns); err != nil {
		return err
	}
	if err := p.AwaitUp(ctx, b.cmd.Conns); err != nil {
		return err
	}
	if err := p.Notify(ctx, b.cmd.Conns); err != nil {
		return err
	}
	before, start := processCPU(cmd.Process.Pid), time.Now()
	for done := 1; done <= b.cmd.Events; done++ {
		if _, err := fmt.Fprintln(in, `{"cmd":"write","n":1}`); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, benchTime)
		err := p.AwaitDeliveries(wait, uint64(done)*uint64(b.cmd.Conns))
		cancel()
		if err != nil {
			return err
		}
	}
	b.print("bare write(2) loop", b.cmd.Events, processCPU(cmd.Process.Pid)-before, time.Since(start))
	return nil
}
