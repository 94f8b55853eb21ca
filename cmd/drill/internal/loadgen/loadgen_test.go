package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/cmd/drill/internal/floor"
	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const patience = 20 * time.Second

func wallNow() time.Time { return time.Now() }

// generator is Run in this process.
type generator struct {
	t     *testing.T
	in    *os.File
	lines *bufio.Scanner
}

func generate(t *testing.T, s *server, change func(*Config)) *generator {
	t.Helper()
	control, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	// Ends with the command stop; waited for by the cleanup.
	go func() {
		done <- Run(control, writer)
		_ = writer.Close()
	}()
	g := &generator{t: t, in: in, lines: bufio.NewScanner(out)}
	g.lines.Buffer(nil, 1<<20)
	t.Cleanup(func() {
		_ = in.Close()
		for g.lines.Scan() {
		}
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		_ = control.Close()
		_ = out.Close()
	})
	cfg := Default()
	cfg.Targets, cfg.Max, cfg.CheckPayload = []string{s.url()}, 1, true
	cfg.Subscriptions = []Subscription{{Format: "chat:1"}}
	if change != nil {
		change(&cfg)
	}
	g.tell(command{Cmd: cmdStart, Config: &cfg})
	g.next(lineReady)
	g.tell(command{Cmd: cmdWant, N: cfg.Max})
	return g
}

func (g *generator) tell(c command) {
	g.t.Helper()
	text, err := json.Marshal(c)
	if err == nil {
		_, err = g.in.Write(append(text, '\n'))
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *generator) next(kind string) line {
	g.t.Helper()
	for g.lines.Scan() {
		var v line
		if err := json.Unmarshal(g.lines.Bytes(), &v); err != nil {
			g.t.Fatal(err)
		}
		if v.Type == kind {
			return v
		}
	}
	g.t.Fatalf("no %s: the generator ended", kind)
	return line{}
}

// until asks for reports until one is enough.
func (g *generator) until(what string, enough func(*Report) bool) *Report {
	g.t.Helper()
	var last *Report
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		g.tell(command{Cmd: cmdReport})
		if last = g.next(lineReport).Report; enough(last) {
			return last
		}
		g.next(lineStatus)
	}
	text, _ := json.Marshal(last)
	g.t.Fatalf("never %s: %s", what, text)
	return nil
}

func TestLossDuplicateAndDisorderAreCounted(t *testing.T) {
	for _, x := range []struct {
		name    string
		offsets []uint64
		want    Counts
	}{
		{"in order", []uint64{1, 2, 3, 4}, Counts{Deliveries: 4}},
		{"one lost", []uint64{1, 2, 4}, Counts{Deliveries: 3, Lost: 1}},
		{"three lost", []uint64{4, 5}, Counts{Deliveries: 2, Lost: 3}},
		{"one twice", []uint64{1, 2, 2, 3}, Counts{Deliveries: 3, Duplicate: 1}},
		{"an old one", []uint64{1, 2, 3, 1}, Counts{Deliveries: 3, Duplicate: 1}},
		{"out of order", []uint64{1, 3, 2, 4}, Counts{Deliveries: 3, Lost: 1, Duplicate: 1}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := serve(t, func(p *peer) {
				p.greet()
				p.events("chat:1", x.offsets...)
			})
			g := generate(t, s, nil)
			got := g.until("done", func(r *Report) bool {
				return r.Total.Deliveries+r.Total.Duplicate == uint64(len(x.offsets))
			}).Total
			got.Attempts, got.Connected, got.Reads, got.Bytes = 0, 0, 0, 0
			if got != x.want {
				t.Errorf("got %+v, want %+v", got, x.want)
			}
			if clean := x.want == (Counts{Deliveries: x.want.Deliveries}); got.Clean() != clean {
				t.Errorf("Clean is %v", got.Clean())
			}
		})
	}
}

func TestEventsCutAnywhereAndJoinedAreRead(t *testing.T) {
	s := serve(t, func(p *peer) {
		// The whole stream after the request, byte by byte.
		_, _ = p.Write(floor.AcceptAnswer(p.request))
		f := p.command()
		b := floor.AppendFrame(nil, wire.AppendServer(nil, connectedFrame(f.Id, 30_000, 10_000,
			[]*clientv1.SubscriptionEntry{{Channel: "chat:1", Epoch: "e1"}})))
		joined := append(append(eventText("chat:1", 1, 1), '\n'), eventText("chat:1", 2, 2)...)
		b = floor.AppendFrame(b, joined)
		// Fields in another order, and unknown ones.
		b = floor.AppendFrame(b, []byte(`{"offset":3,"time_ms":1,"new":{"a":[1]},"type":"event","channel":"chat:1","data":`+
			string(payload.Append(nil, "chat:1", 3, time.Now(), 128))+`}`))
		b = floor.AppendFrame(b, []byte(`{"type":"a new kind of frame"}`))
		b = append(b, 0x80|byte(ws.OpPing), 0)
		b = floor.AppendFrame(b, eventText("chat:1", 4, 4))
		for _, c := range b {
			_, _ = p.Write([]byte{c})
		}
	})
	g := generate(t, s, nil)
	r := g.until("four events", func(r *Report) bool { return r.Total.Deliveries >= 4 })
	if !r.Total.Clean() || r.Latency.Count() != 4 {
		t.Errorf("%+v", r.Total)
	}
}

func TestDamagedAndForeignPayloadsAreCounted(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.greet()
		damaged := eventText("chat:1", 1, 1)
		damaged[len(damaged)/2] ^= 1
		_, _ = p.Write(floor.AppendFrame(nil, damaged))
		foreign := strings.Replace(string(eventText("chat:2", 2, 2)), "chat:2", "chat:1", 1)
		_, _ = p.Write(floor.AppendFrame(nil, []byte(foreign)))
		_, _ = p.Write(floor.AppendFrame(nil, eventText("chat:3", 1, 1))) // not subscribed
		_, _ = p.Write(floor.AppendFrame(nil, eventText("chat:1", 3, 7)))
		_, _ = p.Write(floor.AppendFrame(nil, eventText("chat:1", 4, 7))) // stored twice
		_, _ = p.Write(floor.AppendFrame(nil, eventText("chat:1", 5, 10)))
	})
	g := generate(t, s, nil)
	r := g.until("five events", func(r *Report) bool { return r.Total.Deliveries >= 5 })
	if r.Total.BadPayload != 2 || r.Total.Unexpected != 1 || r.Total.SeqRepeats != 1 || r.Total.SeqSkips != 2 {
		t.Errorf("%+v", r.Total)
	}
}

func TestAClientComesBackWithItsPosition(t *testing.T) {
	var mu sync.Mutex
	var asked []*clientv1.SubscriptionRequest
	s := serve(t, func(p *peer) {
		entry := &clientv1.SubscriptionEntry{Channel: "chat:1", Epoch: "e1"}
		switch p.number {
		case 1: // recovered: 3 follows
			entry.Offset, entry.Recovered = 3, true
		case 2: // pending, then recovered
			entry.Pending = true
		case 3: // history is gone
			entry.Offset = 20
		}
		m := p.greet(entry)
		mu.Lock()
		asked = append(asked, m.Subscriptions...)
		mu.Unlock()
		switch p.number {
		case 0:
			p.events("chat:1", 1, 2)
		case 1:
			p.events("chat:1", 3, 4)
		case 2:
			p.say(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{
				Single: true, Subscriptions: []*clientv1.SubscriptionEntry{{Channel: "chat:1", Epoch: "e1", Offset: 5, Recovered: true}},
			}}})
			p.events("chat:1", 5)
			p.say(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{Channel: "chat:1", Epoch: "e1", Offset: 8}}})
			p.events("chat:1", 9)
		case 3:
			p.events("chat:1", 21)
			return
		}
		_, _ = p.Write(ws.MustCompileFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(4000, "come_back"))))
		_ = p.atEnd()
		_ = p.Close()
	})
	g := generate(t, s, func(c *Config) { c.Policy = Policy{Kind: "fixed", Interval: time.Millisecond, AttemptTime: patience} })
	r := g.until("seven events", func(r *Report) bool { return r.Total.Deliveries >= 7 && r.Total.Connected == 4 })
	if c := r.Total; !c.Clean() || c.Recovered != 2 || c.NotRecovered != 1 || c.Pending != 1 || c.Gaps != 1 || c.Announced != 3+11 {
		t.Errorf("%+v", c)
	}
	if r.Codes["4000"] != 3 || r.Causes["closed"] != 3 {
		t.Errorf("codes %v, causes %v", r.Codes, r.Causes)
	}
	mu.Lock()
	defer mu.Unlock()
	var offsets []uint64
	for _, a := range asked[1:] {
		if a.Epoch != "e1" || a.Offset == nil {
			t.Fatalf("asked %v", a)
		}
		offsets = append(offsets, *a.Offset)
	}
	if asked[0].Offset != nil || !reflect.DeepEqual(offsets, []uint64{2, 4, 9}) {
		t.Errorf("asked %v", asked)
	}
}

func TestRefusalsAreCountedAndTheServersWaitKept(t *testing.T) {
	var mu sync.Mutex
	var at []time.Time
	s := serve(t, func(p *peer) {
		mu.Lock()
		at = append(at, time.Now())
		mu.Unlock()
		switch p.number {
		case 0:
			_, _ = p.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"))
			_ = p.Close()
		case 1:
			b := floor.AcceptAnswer(p.request)
			b = floor.AppendFrame(b, wire.AppendServer(nil, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Busy{
				Busy: &clientv1.Busy{RetryAfterMs: 500, Scope: "node"}}}))
			b = append(b, ws.MustCompileFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(4010, "busy")))...)
			_, _ = p.Write(b)
			_ = p.Conn.(*net.TCPConn).CloseWrite()
		default:
			p.greet()
		}
	})
	g := generate(t, s, func(c *Config) { c.Policy = Policy{Kind: "sdk"} })
	r := g.until("connected", func(r *Report) bool { return r.Up == 1 })
	if r.Refused["503"] != 1 || r.Refused["busy"] != 1 || r.Total.Refused != 2 || r.Total.Failed != 0 || r.Total.Attempts != 3 {
		t.Errorf("%v, %+v", r.Refused, r.Total)
	}
	refusals, arrivals := uint32(0), uint32(0)
	for _, n := range r.Refusals {
		refusals += n
	}
	for _, n := range r.Arrivals {
		arrivals += n
	}
	if refusals != 2 || arrivals != 1 || len(r.Arrivals) < 1500/200 {
		t.Errorf("series: %v refused, %v arrived", r.Refusals, r.Arrivals)
	}
	mu.Lock()
	defer mu.Unlock()
	if first, second := at[1].Sub(at[0]), at[2].Sub(at[1]); first < time.Second || second < 500*time.Millisecond {
		t.Errorf("waits of %v and %v", first, second)
	}
}

func TestADeadServerIsNoticedByThePing(t *testing.T) {
	s := serve(t, func(p *peer) {
		_, _ = p.Write(floor.AcceptAnswer(p.request))
		f := p.command()
		p.say(connectedFrame(f.Id, 50, 50, []*clientv1.SubscriptionEntry{{Channel: "chat:1", Epoch: "e1"}}))
		if p.number > 0 {
			return
		}
		for range 3 { // answers some, then never again
			if f := p.command(); f.GetPing() != nil {
				p.say(&clientv1.ServerFrame{Id: f.Id, Frame: &clientv1.ServerFrame_Pong{Pong: &clientv1.Pong{}}})
			}
		}
	})
	g := generate(t, s, nil)
	r := g.until("given up", func(r *Report) bool { return r.Causes["ping_timeout"] == 1 })
	if r.Total.Pings < 4 || r.Up != 0 {
		t.Errorf("%d pings, %d up", r.Total.Pings, r.Up)
	}
}

func TestAnAttemptHasADeadline(t *testing.T) {
	s := serve(t, func(*peer) {}) // reads, never answers
	g := generate(t, s, func(c *Config) {
		c.Policy = Policy{Kind: "fixed", Interval: time.Hour, AttemptTime: 50 * time.Millisecond}
	})
	r := g.until("given up", func(r *Report) bool { return r.Causes["timeout"] == 1 })
	if r.Total.Failed != 1 {
		t.Errorf("%+v", r.Total)
	}
}

func TestSourceAddressesAndWindowAreKept(t *testing.T) {
	const clients = 50
	var mu sync.Mutex
	from := map[string]int{}
	open, most := 0, 0
	s := serve(t, func(p *peer) {
		host, _, _ := net.SplitHostPort(p.RemoteAddr().String())
		mu.Lock()
		from[host]++
		open++
		most = max(most, open)
		mu.Unlock()
		_, _ = p.Write(floor.AcceptAnswer(p.request))
		f := p.command()
		mu.Lock()
		open--
		mu.Unlock()
		p.say(connectedFrame(f.Id, 30_000, 10_000, []*clientv1.SubscriptionEntry{{Channel: "chat:1", Epoch: "e1"}}))
	})
	g := generate(t, s, func(c *Config) {
		c.Max, c.InFlight, c.Rate, c.First = clients, 8, 200, SourceConns*2-20
		c.Sources = []string{"127.0.55.1"}
	})
	began := time.Now()
	r := g.until("all connected", func(r *Report) bool { return r.Up == clients })
	if took := time.Since(began); took < (clients-1)*5*time.Millisecond {
		t.Errorf("%d connects at 200/s took %v", clients, took)
	}
	mu.Lock()
	defer mu.Unlock()
	if from["127.0.55.1"] != clients || most > 8 || r.Connect.Count() != clients {
		t.Errorf("from %v, %d at once, %d times", from, most, r.Connect.Count())
	}
}

func TestAPhaseCountsFromItsMark(t *testing.T) {
	more := make(chan struct{})
	s := serve(t, func(p *peer) {
		p.greet()
		p.events("chat:1", 1, 2, 3)
		<-more
		p.events("chat:1", 4, 5)
	})
	g := generate(t, s, nil)
	g.until("three", func(r *Report) bool { return r.Total.Deliveries == 3 })
	g.tell(command{Cmd: cmdMark, Name: "second"})
	g.next(lineMarked)
	g.tell(command{Cmd: cmdNotify, N: 2})
	g.next(lineMarked)
	close(more)
	for g.next(lineStatus).Deliveries != 5 {
	}
	r := g.until("five", func(r *Report) bool { return r.Total.Deliveries == 5 })
	if r.PhaseName != "second" || r.Phase.Deliveries != 2 || r.Latency.Count() != 2 {
		t.Errorf("%q %+v", r.PhaseName, r.Phase)
	}
}

func TestChildrenShareTheClients(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.greet()
		p.events("chat:1", 1, 2)
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cfg := Default()
	cfg.Targets, cfg.Max, cfg.CheckPayload = []string{s.url()}, 31, true
	cfg.Subscriptions = []Subscription{{Format: "chat:1"}, {Format: "own:%d", Every: 1}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(ctx, ParentConfig{Command: []string{self}, Env: []string{roleVariable + "=generator"}, Children: 3}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, n := range []int{10, 31} {
		if err := p.Want(n); err != nil {
			t.Fatal(err)
		}
		if err := p.AwaitUp(ctx, n); err != nil {
			t.Fatal(err)
		}
		if up := p.Up(); up != n {
			t.Errorf("%d up, wanted %d", up, n)
		}
	}
	if err := p.AwaitDeliveries(ctx, 62); err != nil {
		t.Fatal(err)
	}
	if err := p.Mark(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	r, err := p.Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.Wanted != 31 || r.Up != 31 || r.Total.Deliveries != 62 || !r.Total.Clean() || r.Phase.Deliveries != 0 || r.CPU <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestABadConfigurationEndsTheChildWithItsReason(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Targets, cfg.Max = []string{"wss://example.com"}, 1
	_, err = Start(t.Context(), ParentConfig{Command: []string{self}, Env: []string{roleVariable + "=generator"}}, cfg)
	if err == nil || !strings.Contains(err.Error(), "targets") {
		t.Errorf("got %v", err)
	}
}
