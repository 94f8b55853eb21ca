package api

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeChannels numbers in memory, unless it is told to hold what comes.
type fakeChannels struct {
	mu        sync.Mutex // guards below
	hold      bool
	held      []*channel.Publication
	published []*channel.Publication
	asked     []*channel.Question
	elsewhere bool // pages are at another router
}

func (f *fakeChannels) Publish(p *channel.Publication) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.published = append(f.published, p)
	if f.hold {
		f.held = append(f.held, p)
		return
	}
	p.Finish(channel.Result{Epoch: 1, Offset: uint64(len(f.published)), Durability: p.Namespace.Durability})
}

func (f *fakeChannels) Ask(q *channel.Question) {
	defer q.Looked()
	f.mu.Lock()
	f.asked = append(f.asked, q)
	f.mu.Unlock()
	q.Reply(&gatewayv1.Answer{Id: q.Ask.Id, Status: gatewayv1.Status_STATUS_OK})
}

func (f *fakeChannels) Page(q *channel.PageQuery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.Reply(channel.PageResult{Elsewhere: f.elsewhere, Epoch: 1, Head: 7, First: 8})
}

func (f *fakeChannels) Lag() time.Duration { return 0 }

// count is how many publications came.
func (f *fakeChannels) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.published)
}

// release finishes what is held, and holds no more.
func (f *fakeChannels) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.held {
		p.Finish(channel.Result{Epoch: 1, Offset: 1})
	}
	f.hold, f.held = false, nil
}

// fakeViews gives every channel to one router.
type fakeViews struct {
	mu    sync.Mutex // guards below
	owner string
	seq   uint64
}

func (v *fakeViews) View() (*presence.Snapshot, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := &presence.Member{Id: v.owner, Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING}
	return presence.NewSnapshot([]*presence.Member{m}, int64(v.seq)), v.seq
}

func (v *fakeViews) give(owner string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owner, v.seq = owner, v.seq+1
}

// fakePeers connects to servers of the test by id; calls to others fail unsent, or
// unanswered if lost is set.
type fakePeers struct {
	servers map[string]*served
	lost    *grpc.ClientConn
}

func (p *fakePeers) Conn(m *presence.Member) (*grpc.ClientConn, error) {
	if s := p.servers[m.Id]; s != nil {
		return s.conn, nil
	}
	return p.lost, nil
}

func (p *fakePeers) Down(*presence.Member) bool { return p.lost == nil && len(p.servers) == 0 }

// served is a Server with a client's connection to it.
type served struct {
	*Server
	channels *fakeChannels
	views    *fakeViews
	peers    *fakePeers
	conn     *grpc.ClientConn
	pub      routerv1.PublisherServiceClient
	hist     routerv1.HistoryServiceClient
	edge     gatewayv1.EdgeServiceClient
}

func serve(t *testing.T, id string) *served {
	t.Helper()
	cfg := Default()
	cfg.ID = id
	s := &served{channels: &fakeChannels{}, views: &fakeViews{owner: id, seq: 1}, peers: &fakePeers{servers: make(map[string]*served)}}
	stop := make(chan struct{})
	namespaces := namespace.NewSet(map[string]namespace.Namespace{"brief": {Durability: namespace.None}, "closed": namespace.Default()}, true)
	s.Server = New(cfg, Deps{
		Channels: s.channels, Views: s.views, Peers: s.peers, Namespaces: namespaces, Stop: stop,
		Admin: routerv1.UnimplementedAdminServiceServer{}, Handover: gatewayv1.UnimplementedHandoverServiceServer{},
	})
	listener := bufconn.Listen(1 << 20)
	ended := make(chan error, 1)
	go func() { ended <- s.grpc.Serve(listener) }() // the cleanup ends it and waits
	conn, err := grpc.NewClient("passthrough:router", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	s.conn, s.pub = conn, routerv1.NewPublisherServiceClient(conn)
	s.hist, s.edge = routerv1.NewHistoryServiceClient(conn), gatewayv1.NewEdgeServiceClient(conn)
	t.Cleanup(func() {
		close(stop)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Stop(ctx)
		s.Wait()
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func publication(name, key string) *routerv1.Publication {
	return &routerv1.Publication{Channel: name, Data: &routerv1.Publication_Json{Json: `1`}, Key: key}
}

func publishOne(t *testing.T, s *served, name, key string) error {
	t.Helper()
	_, err := s.pub.Publish(t.Context(), &routerv1.PublishRequest{Publication: publication(name, key)})
	return err
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// The owner's connection is known to be down: nothing was sent. What has a store is
// served here, marked so that it is not passed on again; what has none is not, since two
// routers must not number it.
func TestForAnOwnerThatIsDown(t *testing.T) {
	s := serve(t, "r1")
	s.views.give("gone")
	if err := publishOne(t, s, "chat:a", ""); err != nil {
		t.Errorf("with a store: %v", err)
	}
	if n := s.channels.count(); n != 1 || !s.channels.published[0].Here {
		t.Errorf("%d came, %+v", n, s.channels.published)
	}
	if err := publishOne(t, s, "brief:a", ""); status.Code(err) != codes.Unavailable || s.channels.count() != 1 {
		t.Errorf("without a store: %v", err)
	}
}

// The call to the owner failed on the way: it may have been taken. Only a key makes a
// second try harmless.
func TestForAnOwnerThatDidNotAnswer(t *testing.T) {
	s := serve(t, "r1")
	s.views.give("gone")
	lost, err := grpc.NewClient("passthrough:gone", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }))
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	s.peers.lost = lost
	if err := publishOne(t, s, "chat:a", ""); status.Code(err) != codes.Unavailable || s.channels.count() != 0 {
		t.Errorf("without a key: %v", err)
	}
	if err := publishOne(t, s, "brief:a", "k"); status.Code(err) != codes.Unavailable || s.channels.count() != 0 {
		t.Errorf("without a store: %v", err)
	}
	if err := publishOne(t, s, "chat:a", "k"); err != nil || s.channels.count() != 1 {
		t.Errorf("with a key: %v", err)
	}
}

// What one stream sends after a change of owners waits for what it sent before.
func TestAStreamKeepsItsOrderOverAChangeOfOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := serve(t, "r1"), serve(t, "r2")
		a.peers.servers["r2"] = b
		a.channels.hold = true
		stream, err := a.pub.PublishStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		send := func() {
			t.Helper()
			if err := stream.Send(&routerv1.PublishStreamRequest{Publications: []*routerv1.Publication{publication("chat:a", "")}}); err != nil {
				t.Fatal(err)
			}
		}
		send()
		eventually(t, "the first is taken", func() bool { return a.channels.count() == 1 })
		a.views.give("r2")
		send()
		time.Sleep(time.Second) // of the bubble: it would have arrived by now
		if n := b.channels.count(); n != 0 {
			t.Errorf("%d came to the new owner while the old one had not answered", n)
		}
		a.channels.release()
		for range 2 {
			if response, err := stream.Recv(); err != nil || response.Results[0].GetPlaced() == nil {
				t.Fatalf("%v, %v", response, err)
			}
		}
		if n := b.channels.count(); n != 1 || !b.channels.published[0].Forwarded {
			t.Errorf("%d came to the new owner", n)
		}
	})
}

// A page that only its owner has is asked for once more, there; a router that is asked so
// does not ask on.
func TestAPageIsForwardedOnce(t *testing.T) {
	a, b := serve(t, "r1"), serve(t, "r2")
	a.views.give("r2")
	a.channels.elsewhere, a.peers.servers["r2"] = true, b
	page, err := a.hist.ReadHistory(t.Context(), &routerv1.ReadHistoryRequest{Channel: "brief:a"})
	if err != nil || page.Head != 7 {
		t.Errorf("%v, %v", page, err)
	}
	b.views.give("r1")
	b.channels.elsewhere, b.peers.servers["r1"] = true, a
	if _, err := a.hist.ReadHistory(t.Context(), &routerv1.ReadHistoryRequest{Channel: "brief:a"}); status.Code(err) != codes.Unavailable {
		t.Errorf("two that point at each other: %v", err)
	}
}

// An ask reaches the channels with bounds, or not at all.
func TestAsksComeWithBounds(t *testing.T) {
	s := serve(t, "r1")
	stream, err := s.edge.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	asks := []*gatewayv1.Ask{
		{Id: 1, Channel: "closed:a", OpenOnly: true}, {Id: 2, Channel: "chat:a", MaxBytes: 100, DeadlineMs: 50}, {Id: 3, Channel: "chat:a", MaxBytes: 1 << 30},
	}
	if err := stream.Send(&gatewayv1.SyncRequest{Asks: asks}); err != nil {
		t.Fatal(err)
	}
	got := make(map[uint64]gatewayv1.Status)
	for len(got) < len(asks) {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range response.Answers {
			got[a.Id] = a.Status
		}
	}
	if got[1] != gatewayv1.Status_STATUS_FORBIDDEN || len(s.channels.asked) != 2 {
		t.Fatalf("%v, %d asked", got, len(s.channels.asked))
	}
	small, large := s.channels.asked[0], s.channels.asked[1]
	if small.MaxBytes != 100 || time.Until(small.Deadline) > 50*time.Millisecond || large.MaxBytes != s.cfg.AnswerBytes || time.Until(large.Deadline) > s.cfg.ReadDeadline {
		t.Errorf("%+v, %+v", small, large)
	}
}
