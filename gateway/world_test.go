package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is everything around one edge: a router and a bus in memory, which can be
// away. The edge, its sockets and its clients are real.
type world struct {
	t     *testing.T
	edge  *Edge
	leave context.CancelFunc // the signal to end
	hurry context.CancelFunc // the second one
	ended chan struct{}      // closed when Run has returned

	registry *prometheus.Registry // of the edge's metrics

	mu       sync.Mutex // guards all below
	channels map[string][]*gatewayv1.BusEvent
	epoch    uint64
	away     bool
	stuck    string            // a channel whose history cannot be read, but for its beginning
	lossy    bool              // the bus delivers nothing
	first    map[string]uint64 // history has what is after it
	interest map[string]int
	queues   []chan []byte
}

func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	return newWorldOf(t, func(cfg *Config, _ *Deps) {
		if change != nil {
			change(cfg)
		}
	})
}

// newWorldOf also lets the test change the parts that the edge gets.
func newWorldOf(t *testing.T, change func(*Config, *Deps)) *world {
	t.Helper()
	w := &world{
		t: t, epoch: 7, channels: make(map[string][]*gatewayv1.BusEvent),
		interest: make(map[string]int), first: make(map[string]uint64),
	}
	cfg := Default()
	cfg.ID, cfg.Listen, cfg.Anonymous, cfg.Loops = "edge-1", "127.0.0.1:0", true, 2
	cfg.DrainDeadline, cfg.DrainNotice, cfg.CloseWait = 3*time.Second, 0, time.Second
	verifier, err := auth.New(auth.Config{HS256: []byte(testSecret), MaxTTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	fc := feed.Default()
	fc.Shards = 2
	for range fc.ShardCount() {
		w.queues = append(w.queues, make(chan []byte, 10_000))
	}
	deps := Deps{Bus: w, Asker: w, Upstream: w, Members: w, Verifier: verifier, Feed: &fc}
	w.registry = prometheus.NewRegistry()
	cfg.Registry = w.registry
	change(&cfg, &deps)
	w.edge, err = New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	abort, hurry := context.WithCancel(context.Background())
	w.leave, w.hurry, w.ended = cancel, hurry, make(chan struct{})
	go func() { // ended below
		defer close(w.ended)
		if err := w.edge.Run(ctx, abort); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		hurry()
		cancel()
		<-w.ended
	})
	return w
}

const testSecret = "a secret of thirty-two characters"

func (w *world) publish(channel, data string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.publishLocked(channel, data)
}

func (w *world) publishLocked(channel, data string) uint64 {
	e := &gatewayv1.BusEvent{
		Offset: uint64(len(w.channels[channel])) + 1, TimeMs: uint64(time.Now().UnixMilli()), Data: []byte(data),
	}
	w.channels[channel] = append(w.channels[channel], e)
	shard, ok := w.interest[channel]
	if !ok || w.lossy {
		return e.Offset
	}
	msg, err := proto.Marshal(&gatewayv1.Envelope{Channel: channel, Epoch: w.epoch, Head: e.Offset, Events: []*gatewayv1.BusEvent{e}})
	if err != nil {
		w.t.Error(err)
	}
	select {
	case w.queues[shard] <- msg:
	default: // a bus may lose
	}
	return e.Offset
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// The bus.

func (w *world) Interest(channel string, shard int) error {
	w.set(func() { w.interest[channel] = shard })
	return nil
}
func (w *world) Renew(channel string, shard int) error { return w.Interest(channel, shard) }
func (w *world) Drop(channel string, _ int)            { w.set(func() { delete(w.interest, channel) }) }
func (w *world) Disruptions(int) uint64                { return 0 }
func (w *world) Receive(ctx context.Context, shard int, into [][]byte) ([][]byte, error) {
	select {
	case <-ctx.Done():
		return into, ctx.Err()
	case msg := <-w.queues[shard]:
		return append(into, msg), nil
	}
}

// The router.

func (w *world) Ask(q *gatewayv1.Ask, to feed.Answerer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &gatewayv1.Answer{Id: q.Id, Status: gatewayv1.Status_STATUS_OK, Epoch: w.epoch, HasHistory: true}
	switch {
	case w.away || q.Channel == w.stuck && q.Offset > 0:
		a = &gatewayv1.Answer{Id: q.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, RetryAfterMs: 50}
	case wire.Namespace(q.Channel) == "none":
		a = &gatewayv1.Answer{Id: q.Id, Status: gatewayv1.Status_STATUS_NOT_FOUND, Message: "unknown namespace"}
	case q.OpenOnly:
		a = &gatewayv1.Answer{Id: q.Id, Status: gatewayv1.Status_STATUS_FORBIDDEN, Message: "not granted"}
	default:
		w.answer(q, a)
	}
	go to.Answer(a) // ends at once: Answer does not block
}

func (w *world) answer(q *gatewayv1.Ask, a *gatewayv1.Answer) {
	events := w.channels[q.Channel]
	a.Head = uint64(len(events))
	from := a.Head
	switch {
	case q.Last > 0:
		from = max(a.Head-min(a.Head, uint64(q.Last)), min(a.Head, w.first[q.Channel]))
		a.From = from
	case q.Epoch != nil && *q.Epoch == w.epoch && q.Offset <= a.Head && q.Offset >= w.first[q.Channel]:
		from, a.Recovered = q.Offset, true
	case q.Epoch != nil && *q.Epoch == w.epoch && q.Offset < w.first[q.Channel]:
		a.From = min(a.Head, w.first[q.Channel])
	}
	size := 0
	for _, e := range events[from:] {
		if size += len(e.Data); size > int(q.MaxBytes) && len(a.Events) > 0 {
			a.More = true
			break
		}
		a.Events = append(a.Events, e)
	}
}

func (w *world) Submit(_ context.Context, s *gatewayv1.Submission) (*gatewayv1.SubmitResult, error) {
	if s.OpenOnly {
		return &gatewayv1.SubmitResult{Code: uint32(codes.PermissionDenied), Message: "not granted"}, nil
	}
	return &gatewayv1.SubmitResult{Epoch: w.epoch, Offset: w.publish(s.Channel, string(s.Data))}, nil
}

func (w *world) ReadHistory(_ context.Context, q *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return nil, status.Error(codes.Unavailable, "away")
	}
	r := &routerv1.ReadHistoryResponse{Channel: q.Channel, Epoch: wire.FormatEpoch(w.epoch)}
	for _, e := range w.channels[q.Channel] {
		r.Events = append(r.Events, &routerv1.HistoryEvent{Offset: e.Offset, Data: &routerv1.HistoryEvent_Json{Json: string(e.Data)}})
	}
	return r, nil
}

// The membership.

func (w *world) Snapshot() *presence.Snapshot               { return presence.NewSnapshot(nil, 1) }
func (w *world) Figures() map[presence.Key]*presence.Figure { return nil }
func (w *world) Joined() <-chan struct{}                    { c := make(chan struct{}); close(c); return c }
func (w *world) SetState(gatewayv1.State)                   {}

// client is a WebSocket client that knows nothing of Spillway.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	left []string // lines of a message not yet looked at
}

const patience = 10 * time.Second

func (w *world) dial(protocols ...string) *client {
	w.t.Helper()
	d := ws.Dialer{Protocols: protocols, Timeout: patience}
	conn, br, _, err := d.Dial(context.Background(), "ws://"+w.edge.Addr()+"/v1/ws")
	if err != nil {
		w.t.Fatal(err)
	}
	if br == nil {
		br = bufio.NewReader(conn)
	}
	c := &client{t: w.t, conn: conn, in: br}
	w.t.Cleanup(func() { conn.Close() })
	return c
}

// connect dials and sends a connect frame with more fields, if any.
func (w *world) connect(fields string) *client {
	w.t.Helper()
	c := w.dial(wire.ProtocolJSON)
	c.send(`{"type":"connect","id":1` + fields + `}`)
	return c
}

func (c *client) send(text string) {
	c.t.Helper()
	c.conn.SetDeadline(time.Now().Add(patience))
	if err := wsutil.WriteClientText(c.conn, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

type frame map[string]any

func (f frame) String() string { b, _ := json.Marshal(map[string]any(f)); return string(b) }

type rw struct {
	*bufio.Reader
	net.Conn
}

func (r rw) Read(p []byte) (int, error) { return r.Reader.Read(p) }

// line returns the next frame, or the error that ended the connection.
func (c *client) line() (string, error) {
	for len(c.left) == 0 {
		c.conn.SetDeadline(time.Now().Add(patience))
		data, err := wsutil.ReadServerText(rw{c.in, c.conn})
		if err != nil {
			return "", err
		}
		c.left = strings.Split(string(data), "\n")
	}
	line := c.left[0]
	c.left = c.left[1:]
	return line, nil
}

func (c *client) next() frame {
	c.t.Helper()
	line, err := c.line()
	if err != nil {
		c.t.Fatalf("wanted a frame, got %v", err)
	}
	var f frame
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		c.t.Fatalf("%s: %v", line, err)
	}
	return f
}

// expect reads the next frame and checks that it holds what want (JSON) says.
func (c *client) expect(want string) frame {
	c.t.Helper()
	f := c.next()
	var w frame
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		c.t.Fatalf("%s: %v", want, err)
	}
	if !holds(map[string]any(f), map[string]any(w)) {
		c.t.Fatalf("got  %s\nwant %s", f, want)
	}
	return f
}

func holds(got, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for k, v := range w {
			if !holds(g[k], v) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !holds(g[i], w[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(got) == fmt.Sprint(want)
}

// expectClose reads on until the server closes, and wants this code.
func (c *client) expectClose(code ws.StatusCode) {
	c.t.Helper()
	for {
		_, err := c.line()
		if err == nil {
			continue
		}
		closed, ok := err.(wsutil.ClosedError)
		if !ok || closed.Code != code {
			c.t.Fatalf("ended with %v, want close %d", err, code)
		}
		return
	}
}

// expectEvents wants these offsets of a channel next, in order.
func (c *client) expectEvents(channel string, from, to int) {
	c.t.Helper()
	for i := from; i <= to; i++ {
		c.expect(fmt.Sprintf(`{"type":"event","channel":%q,"offset":%d}`, channel, i))
	}
}

// metric is what the edge shows under spillway_gateway_name, of one label value if one is
// named.
func (w *world) metric(name string, label ...string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "spillway_gateway_"+name {
			continue
		}
		for _, m := range family.Metric {
			if len(label) == 0 || m.Label[0].GetValue() == label[0] {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	w.t.Fatalf("there is no metric %s %v", name, label)
	return 0
}

func counter(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}
