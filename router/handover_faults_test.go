package router

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
)

type handStream = grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]

// stranger is a router that a test plays; it hangs where it is not told what to do.
type stranger struct {
	gatewayv1.UnimplementedHandoverServiceServer
	gatewayv1.UnimplementedEdgeServiceServer
	hand func(handStream) error
}

func (s *stranger) Hand(stream handStream) error {
	if s.hand != nil {
		return s.hand(stream)
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (s *stranger) Submit(ctx context.Context, _ *gatewayv1.SubmitRequest) (*gatewayv1.SubmitResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// invite lets a stranger serve as one more router, that nobody has seen yet.
func (c *crew) invite(id string, s *stranger) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	server := grpc.NewServer()
	gatewayv1.RegisterHandoverServiceServer(server, s)
	gatewayv1.RegisterEdgeServiceServer(server, s)
	go func() { _ = server.Serve(listener) }() // the cleanup ends it
	c.t.Cleanup(server.Stop)
	c.strange[id] = listener.Addr().String()
	c.states[id] = gatewayv1.State_STATE_SERVING
}

// ownedBy are those of the channels that a router owns once others of the crew serve too.
func (c *crew) ownedBy(id string, names []string) []string {
	s := c.snapshot()
	var owned []string
	for _, name := range names {
		if s.Owner(name).Id == id {
			owned = append(owned, name)
		}
	}
	return owned
}

// submit publishes as another router would that takes this one for the owner.
func (n *node) submit(ctx context.Context, channel, key string) (*gatewayv1.SubmitResult, error) {
	r, err := n.edge.Submit(ctx, &gatewayv1.SubmitRequest{Forwarded: true, Submissions: []*gatewayv1.Submission{{Channel: channel, Data: []byte(`1`), Key: key}}})
	if err != nil {
		return nil, err
	}
	return r.Results[0], nil
}

// A stop ends in its time, whoever hangs: a router that should take channels, or one to
// which a publish was passed on.
func TestStopEndsThoughOtherRoutersHang(t *testing.T) {
	c := newCrewWith(t, func(cfg *Config) {
		cfg.HandoverTimeout, cfg.StopTimeout, cfg.API.PublishDeadline = time.Second, 300*time.Millisecond, time.Hour
		cfg.API.CallDeadline = time.Hour
	}, "r1")
	c.invite("r2", &stranger{})
	names := crewChannels("brief", 20)
	passed := c.ownedBy("r2", names)
	c.publishAll("r1", names[:10], "")
	n := c.nodes["r1"]
	c.show("r1")
	ctx, hangUp := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() { // ends with ctx
		defer close(gone)
		_, _ = n.submit(ctx, passed[len(passed)-1], "") // a channel that was never here
	}()
	eventually(t, "the publish is passed on", func() bool {
		return n.counter("spillway_router_handover_passed_total") > 0
	})
	hangUp()
	<-gone
	n.stop()
	select {
	case <-n.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on")
	}
}

func keysOfMap(m map[string]*routerv1.Placed) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	return names
}

// A run that hangs in the store holds up its own channel and no other; the next owner
// loads that one.
func TestOneSlowChannelDelaysNoOther(t *testing.T) {
	c := newCrewWith(t, func(cfg *Config) { cfg.HandoverGrace, cfg.HandoverTimeout = time.Second, time.Minute }, "r1", "r2")
	names := crewChannels("chat", 200)
	first := c.publishAll("r1", names, "")
	n := c.nodes["r1"]
	var slow string
	for _, name := range names {
		if n.views.Owned(name) {
			slow = name
		}
	}
	hang, entered := make(chan struct{}), make(chan struct{}, 10)
	defer close(hang)
	n.store.onAppend(func(ctx context.Context, _ []history.Run, _ func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		entered <- struct{}{}
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return nil, errAway
	})
	go func() { _, _ = n.publishErr(slow, `2`, "") }() // ends with its deadline
	<-entered
	c.leave("r1", "r2")
	if left := n.has(names); left > 1 {
		t.Errorf("%d channels are left", left)
	}
	wantNext(t, "at the next owner", first, c.publishAll("r2", names, ""))
}

// Who publishes on a channel whose hand is not answered hears soon to come again, and
// others are served.
func TestPublishesOnAChannelThatIsHeldComeAgain(t *testing.T) {
	c := newCrewWith(t, func(cfg *Config) { cfg.HandoverWait, cfg.HandoverTimeout = 400*time.Millisecond, time.Minute }, "r1")
	var deaf atomic.Bool
	deaf.Store(true)
	c.invite("r2", &stranger{hand: func(stream handStream) error {
		for {
			request, err := stream.Recv()
			if err != nil {
				return nil
			}
			if request.Seq > 0 && deaf.Load() {
				continue
			}
			if err := stream.Send(&gatewayv1.HandResponse{Seq: request.Seq, Life: 1}); err != nil {
				return err
			}
		}
	}})
	names := crewChannels("brief", 20)
	theirs := c.ownedBy("r2", names)
	c.publishAll("r1", names, "")
	n := c.nodes["r1"]
	c.show("r1")
	eventually(t, "it is being given", func() bool { return n.state(theirs[0]).Moving })
	for range 2 {
		res, err := n.submit(testContext(t), theirs[0], "")
		if err != nil || codes.Code(res.Code) != codes.Unavailable || res.RetryAfterMs == 0 || !strings.Contains(res.Message, "moving") {
			t.Fatalf("told %v %v", res, err)
		}
	}
	for _, name := range names {
		if n.views.Owned(name) {
			n.publish1(name, `2`, "")
		}
	}
	deaf.Store(false)
	eventually(t, "the hand is answered", func() bool { return n.table.Offered() == 0 })
}

// distort lets a router answer hands in its own way.
type distort struct {
	grpc.ServerStream
	send func(s grpc.ServerStream, r *gatewayv1.HandResponse) error
}

func (d *distort) SendMsg(m any) error {
	if r, ok := m.(*gatewayv1.HandResponse); ok {
		return d.send(d.ServerStream, r)
	}
	return d.ServerStream.SendMsg(m)
}

// A receiver whose answers come late, twice, not at all, or are of another piece: its
// channels go on where they were, at one router.
func TestAnswersToHandsMayBeWrong(t *testing.T) {
	first := func(wrong func(grpc.ServerStream, *gatewayv1.HandResponse) error) func(grpc.ServerStream, *gatewayv1.HandResponse) error {
		var done atomic.Bool
		return func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
			if r.Seq == 1 && done.CompareAndSwap(false, true) {
				return wrong(s, r)
			}
			return s.SendMsg(r)
		}
	}
	for name, send := range map[string]func(grpc.ServerStream, *gatewayv1.HandResponse) error{
		"twice": func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
			if err := s.SendMsg(r); err != nil {
				return err
			}
			return s.SendMsg(r)
		},
		"late": first(func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
			pause(context.Background(), 600*time.Millisecond)
			return s.SendMsg(r)
		}),
		"never": first(func(grpc.ServerStream, *gatewayv1.HandResponse) error { return nil }),
		"broken off": first(func(grpc.ServerStream, *gatewayv1.HandResponse) error {
			return status.Error(codes.Unavailable, "broken off")
		}),
		"of another piece": first(func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
			return s.SendMsg(&gatewayv1.HandResponse{Seq: r.Seq + 1, Life: r.Life})
		}),
		"of another life": first(func(s grpc.ServerStream, r *gatewayv1.HandResponse) error {
			return s.SendMsg(&gatewayv1.HandResponse{Seq: r.Seq, Life: r.Life + 1})
		}),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrewWith(t, func(cfg *Config) {
				cfg.HandoverWait, cfg.HandoverTimeout = 500*time.Millisecond, time.Minute
				if cfg.ID == "r2" {
					cfg.API.Options = append(cfg.API.Options, grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
						return next(srv, &distort{s, send})
					}))
				}
			}, "r1", "r2")
			names := append(crewChannels("brief", 90), crewChannels("chat", 90)...)
			before := c.publishAll("r1", names, "")
			c.leave("r1", "r2")
			if left := c.nodes["r1"].has(names); left != 0 {
				t.Errorf("%d channels are left", left)
			}
			wantNext(t, "after the leave", before, c.publishAll("r2", names, ""))
		})
	}
}

// givingStream is a stream of a router that gives channels to a node.
type givingStream struct {
	n      *node
	life   uint64
	stream grpc.BidiStreamingClient[gatewayv1.HandRequest, gatewayv1.HandResponse]
}

// hand opens a stream as another router does.
func (n *node) hand(life uint64) *givingStream {
	n.t.Helper()
	stream, err := gatewayv1.NewHandoverServiceClient(n.conn).Hand(testContext(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	g := &givingStream{n, life, stream}
	if _, err := g.send(0); err != nil {
		n.t.Fatalf("the first message: %v", err)
	}
	return g
}

func (g *givingStream) send(seq uint64, channels ...*gatewayv1.HandedChannel) (*gatewayv1.HandResponse, error) {
	err := g.stream.Send(&gatewayv1.HandRequest{Router: "r2", Life: g.life, Seq: seq, Revision: 1, Channels: channels})
	if err != nil {
		return nil, err
	}
	return g.stream.Recv()
}

// What comes by a stream that the giver has given up is late: it has sent it again by a
// newer one, or counted it as lost.
func TestHandsByOldStreamsAreRefused(t *testing.T) {
	n := start(t, nil, nil)
	empty := func(channel string) *gatewayv1.HandedChannel {
		return &gatewayv1.HandedChannel{Channel: channel, Epoch: 5 << 20, Head: 1, Moves: 1}
	}
	older := n.hand(7)
	if _, err := older.send(1, empty("brief:a")); err != nil {
		t.Errorf("the first was refused: %v", err)
	}
	newer := n.hand(7)
	if _, err := older.send(2, empty("brief:b")); status.Code(err) != codes.Aborted {
		t.Errorf("one by an old stream was taken: %v", err)
	}
	for range 2 { // a repeat gets the same answer
		if a, err := newer.send(2, empty("brief:c")); err != nil || a.Seq != 2 || a.Refused {
			t.Errorf("one by the new stream was refused: %v %v", a, err)
		}
	}
	for channel, want := range map[string]bool{"brief:a": true, "brief:b": false, "brief:c": true} {
		if state := n.state(channel); state.Known != want || want && state.Epoch != 5<<20 {
			t.Errorf("%s: %+v", channel, state)
		}
	}
	if taken := n.table.Channels(); taken != 2 {
		t.Errorf("%d channels were taken", taken)
	}
}

// without is a version of the router that does not hand channels over.
func without(cfg *Config) {
	refuse := func(method string) error {
		if strings.Contains(method, "HandoverService") {
			return status.Error(codes.Unimplemented, "unknown service")
		}
		return nil
	}
	cfg.API.Options = append(cfg.API.Options,
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := refuse(info.FullMethod); err != nil {
				return err
			}
			return next(srv, s)
		}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := refuse(info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}))
}

// A router of a version that hands nothing costs no waiting, in either direction: stored
// channels go on, the others begin a new epoch.
func TestOlderRoutersCostTheOrdinaryWay(t *testing.T) {
	check := func(t *testing.T, before, after map[string]*routerv1.Placed) {
		for name, a := range after {
			b := before[name]
			if stored := strings.HasPrefix(name, "chat"); stored && (a.Epoch != b.Epoch || a.Offset != b.Offset+1) || !stored && a.Epoch < b.Epoch {
				t.Errorf("%s: %v after %v", name, a, b)
			}
		}
	}
	names := append(crewChannels("brief", 30), crewChannels("chat", 30)...)
	t.Run("the next owner is older", func(t *testing.T) {
		c := newCrewWith(t, func(cfg *Config) {
			cfg.HandoverTimeout, cfg.HandoverGrace = time.Hour, time.Hour
			if cfg.ID == "r2" {
				without(cfg)
			}
		}, "r1", "r2")
		first := c.publishAll("r1", names, "")
		began := time.Now()
		c.leave("r1", "r2")
		if time.Since(began) > 10*time.Second {
			t.Error("it was tried to the end")
		}
		check(t, first, c.publishAll("r2", names, ""))
	})
	t.Run("the last owner was older", func(t *testing.T) {
		c := newCrewWith(t, func(cfg *Config) {
			cfg.HandoverWait, cfg.HandoverTimeout = time.Hour, 500*time.Millisecond
			if cfg.ID == "r1" {
				without(cfg)
			}
		}, "r1")
		first := c.publishAll("r1", names, "")
		c.start("r2")
		c.states["r2"] = gatewayv1.State_STATE_SERVING
		c.show("r2") // r1 hands nothing, not even without being asked
		check(t, first, c.publishAll("r2", c.ownedBy("r2", names), ""))
	})
}

// A router whose own view does not show that it leaves (etcd is away) gives what it has
// all the same, and serves it until then.
func TestChannelsAreHandedWithoutMembership(t *testing.T) {
	var closed atomic.Bool
	c := newCrewWith(t, func(cfg *Config) {
		cfg.HandoverWait = 400 * time.Millisecond
		if cfg.ID == "r2" {
			cfg.API.Options = append(cfg.API.Options, grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if closed.Load() && strings.Contains(info.FullMethod, "HandoverService") {
					return status.Error(codes.Unavailable, "not yet")
				}
				return next(srv, s)
			}))
		}
	}, "r1", "r2")
	closed.Store(true)
	names := crewChannels("brief", 40)
	first := c.publishAll("r1", names, "")
	n := c.nodes["r1"]
	mine := make(map[string]*routerv1.Placed)
	for _, name := range names {
		if n.views.Owned(name) {
			mine[name] = first[name]
		}
	}
	left := make(chan struct{})
	go func() { // ends when all is given
		defer close(left)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		n.handover.Leave(ctx)
	}()
	eventually(t, "it departs", func() bool {
		look := n.views.Look(time.Now())
		return look.Leaving()
	})
	for name, b := range mine {
		res, err := n.submit(testContext(t), name, "")
		if err != nil || wire.FormatEpoch(res.Epoch) != b.Epoch || res.Offset != 2 {
			t.Fatalf("%s: %v %v", name, res, err)
		}
	}
	closed.Store(false)
	<-left
	for name, b := range mine {
		res, err := c.nodes["r2"].submit(testContext(t), name, "")
		if err != nil || wire.FormatEpoch(res.Epoch) != b.Epoch || res.Offset != 3 {
			t.Errorf("%s at the next owner: %v %v", name, res, err)
		}
	}
}

// What could not be given within its grace is given when the next owner can be reached.
func TestChannelIsGivenAfterItsGrace(t *testing.T) {
	c := newCrewWith(t, func(cfg *Config) { cfg.HandoverGrace = 50 * time.Millisecond }, "r1", "r2")
	names := crewChannels("brief", 40)
	first := c.publishAll("r1", names, "")
	n := c.nodes["r1"]
	mine := make(map[string]*routerv1.Placed)
	for _, name := range names {
		if n.views.Owned(name) {
			mine[name] = first[name]
		}
	}
	address := c.nodes["r2"].Addr()
	c.strange["r2"] = "127.0.0.1:1" // as r1 sees it
	c.set("r1", gatewayv1.State_STATE_DRAINING)
	c.show("r1")
	for name := range mine {
		eventually(t, "its grace is over", func() bool {
			res, err := n.submit(testContext(t), name, "")
			return err == nil && codes.Code(res.Code) != codes.OK
		})
		break
	}
	c.strange["r2"] = address
	c.show("r1", "r2")
	for name, p := range c.publishAll("r2", keysOfMap(mine), "") {
		if p.Epoch != mine[name].Epoch {
			t.Errorf("%s: %v after %v", name, p, mine[name])
		}
	}
}
