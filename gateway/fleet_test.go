package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	sdk "github.com/spillway-io/spillway/gateway/client"
	"github.com/spillway-io/spillway/gateway/leave"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// fleet is several edges of one cluster in one process: sockets and clients are
// real; membership, bus and registry are in memory and can be away.
type fleet struct {
	t     *testing.T
	names []string
	edges map[string]*world

	mu       sync.Mutex // guards all below
	members  map[string]*presence.Member
	joined   map[string]bool
	silent   map[string]bool
	busAway  bool
	etcdAway bool
	serving  map[string]func([]byte) []byte
	hearers  map[string][]func([]byte)
	progress map[string]*gatewayv1.Progress // by edge
	ops      []*gatewayv1.Operation
	changed  chan struct{}
	only     string // the balancer sends all clients there
	next     int
	pipes    []net.Conn
	front    string // the balancer's URL
}

func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	return newFleetOf(t, nil, names...)
}

func newFleetOf(t *testing.T, change func(id string, c *Config), names ...string) *fleet {
	t.Helper()
	f := &fleet{
		t: t, names: names, edges: map[string]*world{}, members: map[string]*presence.Member{}, silent: map[string]bool{},
		serving: map[string]func([]byte) []byte{}, hearers: map[string][]func([]byte){}, progress: map[string]*gatewayv1.Progress{},
		joined: map[string]bool{}, changed: make(chan struct{}),
	}
	for i, id := range names {
		region := "eu"
		if id[0] == 'u' {
			region = "us"
		}
		m := &presence.Member{
			Id: id, Role: gatewayv1.Role_ROLE_EDGE, Region: region, State: gatewayv1.State_STATE_SERVING, Incarnation: uint64(i) + 100, Capacity: 1000,
		}
		f.set(func() { f.members[id] = m })
		w := newWorldOf(t, func(c *Config, d *Deps) {
			c.ID, c.Region, c.MaxConns, c.Margin, c.DrainDeadline, c.Cluster = id, region, 1000, 10, 10*time.Second, "/spillway/test"
			c.CloseWait = 500 * time.Millisecond
			c.Rebalance.Off, c.Admission.FreshPerSecond, c.Admission.FreshBurst = true, 10_000, 10_000
			c.Admission.MovedPerSecond, c.Admission.CriticalReserve = 200, 0
			if change != nil {
				change(id, c)
			}
			s := &seat{f, id, uint64(i) + 100}
			d.Members, d.Peers, d.Operations, d.Messenger, d.Tickets = s, s, s, s, new(oneKey)
		})
		f.set(func() {
			f.edges[id] = w
			f.members[id].Address = w.scheme() + "://" + w.edge.Addr() + "/v1/ws"
			f.joined[id] = true
		})
	}
	f.balance()
	return f
}

// balance is a TCP balancer, round robin over the edges that are ready.
func (f *fleet) balance() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.front = f.edges[f.names[0]].scheme() + "://" + ln.Addr().String() + "/v1/ws"
	var wait sync.WaitGroup
	f.t.Cleanup(func() {
		ln.Close()
		f.set(func() {
			for _, c := range f.pipes {
				c.Close()
			}
			f.pipes = nil
		})
		wait.Wait()
	})
	wait.Go(func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", f.pick())
			if err != nil {
				c.Close()
				continue
			}
			f.set(func() { f.pipes = append(f.pipes, c, back) })
			for _, p := range [][2]net.Conn{{c, back}, {back, c}} {
				wait.Go(func() { // ends with either side
					_, _ = io.Copy(p[0], p[1])
					p[0].Close()
					p[1].Close()
				})
			}
		}
	})
}

func (f *fleet) pick() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.names {
		f.next++
		id := f.names[f.next%len(f.names)]
		w := f.edges[id]
		if f.only == id || f.only == "" && w.edge.Ready() && !f.silent[id] {
			return w.edge.Addr()
		}
	}
	return "127.0.0.1:1" // nobody
}

func (f *fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// publish gives every edge's router and bus the same event.
func (f *fleet) publish(channel string) uint64 {
	var head uint64
	for _, id := range f.names {
		head = f.edges[id].publish(channel, `"x"`)
	}
	return head
}

// kill ends an edge at once; the others find out after a while.
func (f *fleet) kill(id string) {
	w := f.edges[id]
	w.hurry()
	w.leave()
	<-w.ended
	f.set(func() { delete(f.serving, id) })
}

func (f *fleet) mourn(id string) {
	f.set(func() { f.silent[id] = true })
}

func (f *fleet) operation(change func(*gatewayv1.Operation) bool) *gatewayv1.Operation {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.ops) - 1; i >= 0; i-- {
		op := proto.CloneOf(f.ops[i])
		if change(op) {
			return op
		}
	}
	return nil
}

// ofEdge is the newest operation of an edge.
func (f *fleet) ofEdge(id string) *gatewayv1.Operation {
	return f.operation(func(op *gatewayv1.Operation) bool { return op.Node == id })
}

// begin puts an operation into the registry.
func (f *fleet) begin(op *gatewayv1.Operation) {
	if err := (&seat{fleet: f}).PutOperation(f.t.Context(), op); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) setState(id string, state gatewayv1.OperationState) {
	err := (&seat{fleet: f}).UpdateOperation(f.t.Context(), id, func(op *gatewayv1.Operation) bool { op.State = state; return true })
	if err != nil {
		f.t.Fatal(err)
	}
}

// seat is one edge's place in the fleet.
type seat struct {
	*fleet
	id          string
	incarnation uint64 // of this process, whatever the registry still shows
}

func (s *seat) Incarnation() uint64 { return s.incarnation }

func (s *seat) Snapshot() *presence.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*presence.Member
	for id, m := range s.members {
		if s.joined[id] {
			all = append(all, proto.CloneOf(m))
		}
	}
	return presence.NewSnapshot(all, 1)
}

func (s *seat) Figures() map[presence.Key]*presence.Figure {
	all := map[presence.Key]*presence.Figure{}
	for _, m := range s.Snapshot().Members() {
		s.mu.Lock()
		w := s.edges[m.Id]
		s.mu.Unlock()
		figure := &presence.Figure{Id: m.Id, Incarnation: m.Incarnation, State: m.State, Conns: uint64(w.edge.counts.conns.Load())}
		w.edge.gate.Load(figure)
		all[presence.KeyOf(m)] = figure
	}
	return all
}

func (s *seat) Joined() <-chan struct{} { c := make(chan struct{}); close(c); return c }
func (s *seat) SetState(state gatewayv1.State) {
	s.set(func() { s.members[s.id].State = state })
}
func (s *seat) Silent(key presence.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[key.ID]
}

func (s *seat) BusWorks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.busAway
}

func (s *seat) Request(ctx context.Context, edge string, question []byte) ([]byte, error) {
	s.mu.Lock()
	away, answer := s.busAway, s.serving[edge]
	s.mu.Unlock()
	switch {
	case away:
		return nil, presence.ErrBusAway
	case answer == nil:
		return nil, errors.New("nobody answers there")
	}
	return answer(question), nil
}

func (s *seat) Serve(ctx context.Context, edge string, answer func([]byte) []byte) error {
	s.set(func() { s.serving[edge] = answer })
	<-ctx.Done()
	return nil
}

func (s *seat) Broadcast(topic string, message []byte) error {
	s.mu.Lock()
	away, hearers := s.busAway, slices.Clone(s.hearers[topic])
	if topic == leave.ProgressTopic && !away {
		p := new(gatewayv1.Progress)
		if err := proto.Unmarshal(message, p); err != nil {
			s.t.Error(err)
		}
		s.progress[p.Edge] = p
	}
	s.mu.Unlock()
	if away {
		return presence.ErrBusAway
	}
	for _, hear := range hearers {
		hear(message)
	}
	return nil
}

func (s *seat) Listen(ctx context.Context, topic string, heard func([]byte)) error {
	s.set(func() { s.hearers[topic] = append(s.hearers[topic], heard) })
	<-ctx.Done()
	return nil
}

func (s *seat) Operations() []*gatewayv1.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ops)
}

func (s *seat) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *seat) write(ctx context.Context, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcdAway {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return ctx.Err()
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return do()
}

func (s *seat) PutOperation(ctx context.Context, op *gatewayv1.Operation) error {
	return s.write(ctx, func() error { s.ops = append(s.ops, proto.CloneOf(op)); return nil })
}

func (s *seat) UpdateOperation(ctx context.Context, id string, change func(*gatewayv1.Operation) bool) error {
	return s.write(ctx, func() error {
		for i, op := range s.ops {
			if op.Id == id {
				op = proto.CloneOf(op)
				change(op)
				s.ops[i] = op
				return nil
			}
		}
		return errors.New("there is no such operation")
	})
}

// crowd is clients of the SDK at one edge, and a publisher that never rests.
type crowd struct {
	f     *fleet
	users []*user
	heads []uint64
	stop  context.CancelFunc
	done  chan struct{}
}

// crowd connects n clients to an edge, spread over channels of ten.
func (f *fleet) crowd(at string, n int) *crowd {
	f.t.Helper()
	w := f.edges[at]
	c := &crowd{f: f, done: make(chan struct{})}
	token := tokenOf(f.t, nil)
	f.set(func() { f.only = at })
	for i := range n {
		channel := fmt.Sprintf("chat:%s-%d", at, i/10)
		c.users = append(c.users, w.newUserAt(f.front, channel, token, sdk.WithTLSConfig(trusting)).up(f.t, channel))
	}
	f.set(func() { f.only = "" })
	ctx, cancel := context.WithCancel(f.t.Context())
	c.stop, c.heads = cancel, make([]uint64, (n+9)/10)
	go func() { // publishes until stop; rest waits for it
		defer close(c.done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for i := range c.heads {
				c.heads[i] = f.publish(fmt.Sprintf("chat:%s-%d", at, i))
			}
		}
	}()
	f.t.Cleanup(func() { cancel(); <-c.done })
	return c
}

// rest ends the publishing and wants everybody to have everything, in order and once.
func (c *crowd) rest() {
	c.f.t.Helper()
	c.stop()
	<-c.done
	for i, u := range c.users {
		u.caughtUp(c.f.t, c.heads[i/10])
	}
}

// interruptions counts the streams that were broken.
func (c *crowd) interruptions() int {
	n := 0
	for _, u := range c.users {
		n += int(u.Stats().Interruptions)
	}
	return n
}

func (f *fleet) conns(id string) int64 { return f.edges[id].edge.counts.conns.Load() }

func (f *fleet) waitEnd(id string) {
	f.t.Helper()
	select {
	case <-f.edges[id].ended:
	case <-time.After(30 * time.Second):
		f.t.Fatalf("%s does not end", id)
	}
}
