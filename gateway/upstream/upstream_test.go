package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// router is a scripted EdgeService and HistoryService behind a bufconn.
type router struct {
	gatewayv1.UnimplementedEdgeServiceServer
	routerv1.UnimplementedHistoryServiceServer
	id     string
	server *grpc.Server

	mu       sync.Mutex // guards all below
	listener *bufconn.Listener
	messages [][]*gatewayv1.Ask
	edges    []string
	silent   bool          // answers nothing
	delay    time.Duration // of every answer
	fail     codes.Code    // of calls
	hang     bool          // calls wait for their deadline
	calls    int
}

func (r *router) Sync(stream grpc.BidiStreamingServer[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	var send sync.Mutex
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		r.mu.Lock()
		if m.Edge != "" {
			r.edges = append(r.edges, m.Edge)
		}
		if len(m.Asks) > 0 {
			r.messages = append(r.messages, m.Asks)
		}
		silent, delay := r.silent, r.delay
		r.mu.Unlock()
		if silent || len(m.Asks) == 0 {
			continue
		}
		out := new(gatewayv1.SyncResponse)
		for _, a := range m.Asks {
			out.Answers = append(out.Answers, &gatewayv1.Answer{Id: a.Id, Status: gatewayv1.Status_STATUS_OK, Message: r.id + " " + a.Channel})
		}
		answering.Go(func() {
			if delay > 0 {
				time.Sleep(delay)
			}
			send.Lock()
			defer send.Unlock()
			_ = stream.Send(out)
		})
	}
}

func (r *router) call(ctx context.Context) error {
	r.mu.Lock()
	r.calls++
	fail, hang := r.fail, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if fail != codes.OK {
		return status.Error(fail, "as told")
	}
	return nil
}

func (r *router) Submit(ctx context.Context, m *gatewayv1.SubmitRequest) (*gatewayv1.SubmitResponse, error) {
	return &gatewayv1.SubmitResponse{Results: []*gatewayv1.SubmitResult{{Message: r.id}}}, r.call(ctx)
}

func (r *router) ReadHistory(ctx context.Context, m *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	return &routerv1.ReadHistoryResponse{Channel: m.Channel, Epoch: r.id}, r.call(ctx)
}

func (r *router) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener = bufconn.Listen(1 << 16)
	r.server = grpc.NewServer()
	gatewayv1.RegisterEdgeServiceServer(r.server, r)
	routerv1.RegisterHistoryServiceServer(r.server, r)
	listener, server := r.listener, r.server
	// Ends with stop.
	go func() { _ = server.Serve(listener) }()
}

func (r *router) stop() {
	r.mu.Lock()
	server := r.server
	r.listener = nil
	r.mu.Unlock()
	server.Stop()
}

func (r *router) dial(ctx context.Context) (net.Conn, error) {
	r.mu.Lock()
	l := r.listener
	r.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

func (r *router) asked() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		n += len(m)
	}
	return n
}

func (r *router) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// world is a view of routers and connections to them.
type world struct {
	t       *testing.T
	routers map[string]*router
	conns   map[string]*grpc.ClientConn
	u       *Upstream

	mu       sync.Mutex // guards all below
	snapshot *presence.Snapshot
}

func (w *world) Snapshot() *presence.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot
}

func (w *world) see(ids ...string) {
	var members []*presence.Member
	for _, id := range ids {
		members = append(members, &presence.Member{Id: id, Address: id, Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshot = presence.NewSnapshot(members, time.Now().UnixNano())
}

func (w *world) Conn(m *presence.Member) (*grpc.ClientConn, error) { return w.conns[m.Id], nil }

func (w *world) Down(m *presence.Member) bool {
	return w.conns[m.Id].GetState() == connectivity.TransientFailure
}

// channel returns a channel that a router owns.
func (w *world) channel(owner string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("chat:", i); w.Snapshot().Owner(name).Id == owner {
			return name
		}
	}
}

// second is who inherits a channel.
func (w *world) second(channel string) *router {
	return w.routers[w.Snapshot().Ranked(channel)[1].Id]
}

func inBubble(t *testing.T, change func(*Config), story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, routers: make(map[string]*router), conns: make(map[string]*grpc.ClientConn)}
		for _, id := range []string{"r1", "r2", "r3"} {
			r := &router{id: id}
			r.start()
			conn, err := grpc.NewClient("passthrough:///"+id,
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) }),
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second},
					MinConnectTimeout: 3 * time.Second,
				}))
			if err != nil {
				t.Fatal(err)
			}
			w.routers[id], w.conns[id] = r, conn
		}
		w.see("r1", "r2", "r3")
		cfg := Default()
		cfg.Edge, cfg.View, cfg.Peers = "edge-1", w, w
		if change != nil {
			change(&cfg)
		}
		u, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.u = u
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		// Ends with cancel, waited for below.
		go func() { done <- u.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if n := u.open.Load(); n != 0 {
				t.Errorf("%d questions open after the end", n)
			}
			for id, r := range w.routers {
				w.conns[id].Close()
				r.stop()
			}
			time.Sleep(time.Minute) // answers under way
		}()
		synctest.Wait()
		story(w)
	})
}

// answers collects what an asker hears.
type answers struct {
	mu  sync.Mutex // guards all below
	all map[uint64][]*gatewayv1.Answer
	at  map[uint64]time.Time
}

func newAnswers() *answers {
	return &answers{all: make(map[uint64][]*gatewayv1.Answer), at: make(map[uint64]time.Time)}
}

func (a *answers) Answer(answer *gatewayv1.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[answer.Id] = append(a.all[answer.Id], answer)
	a.at[answer.Id] = time.Now()
}

func (a *answers) one(t *testing.T, id uint64) *gatewayv1.Answer {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all[id]) != 1 {
		t.Fatalf("question %d was answered %d times", id, len(a.all[id]))
	}
	return a.all[id][0]
}

func (w *world) ask(to *answers, id uint64, channel string) {
	w.u.Ask(&gatewayv1.Ask{Id: id, Channel: channel}, to)
}

// answeredBy asks once and says who answered; "": nobody could.
func (w *world) answeredBy(channel string, within time.Duration) string {
	w.t.Helper()
	to := newAnswers()
	w.ask(to, 7, channel)
	time.Sleep(within)
	synctest.Wait()
	a := to.one(w.t, 7)
	if a.Status != gatewayv1.Status_STATUS_OK {
		return ""
	}
	var by, about string
	if _, err := fmt.Sscan(a.Message, &by, &about); err != nil || about != channel {
		w.t.Fatalf("answer %q for %q", a.Message, channel)
	}
	return by
}

func TestQuestionsTravelTogetherToTheOwner(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		to := newAnswers()
		mine := w.channel("r2")
		for id := range uint64(1200) {
			w.ask(to, id, mine)
		}
		time.Sleep(100 * time.Millisecond)
		for id := range uint64(1200) {
			if a := to.one(t, id); a.Message != "r2 "+mine {
				t.Fatalf("question %d: %v", id, a)
			}
		}
		r := w.routers["r2"]
		r.set(func() {
			if len(r.messages) > 5 || len(r.edges) != 1 || r.edges[0] != "edge-1" {
				t.Errorf("%d messages on the streams of %v", len(r.messages), r.edges)
			}
			for _, m := range r.messages {
				if len(m) > 500 {
					t.Errorf("%d questions in a message", len(m))
				}
			}
		})
		if n := w.routers["r1"].asked() + w.routers["r3"].asked(); n != 0 {
			t.Errorf("%d questions to others", n)
		}
	})
}

func TestSilentRouterIsAnsweredForAndThenPassedOver(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		mine := w.channel("r1")
		r := w.routers["r1"]
		r.set(func() { r.silent = true })
		start := time.Now()
		to := newAnswers()
		w.ask(to, 1, mine)
		time.Sleep(3 * time.Second)
		if a := to.one(t, 1); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE {
			t.Fatal(a)
		}
		if d := to.at[1].Sub(start); d < 2*time.Second || d > 2*time.Second+2*sweep {
			t.Errorf("answered after %v", d)
		}
		for id := range uint64(200) { // for 20 s
			w.ask(to, 100+id, mine)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		lost := 0
		for id := range uint64(200) {
			if to.one(t, 100+id).Status != gatewayv1.Status_STATUS_OK {
				lost++
			}
		}
		if lost == 0 || lost > 12 { // one that tries it, now and then
			t.Errorf("%d of 200 questions were lost on a router that says nothing", lost)
		}
		r.set(func() { r.silent = false })
		time.Sleep(5 * time.Second)
		if by := w.answeredBy(mine, 100*time.Millisecond); by != "r1" {
			t.Errorf("answered by %q after r1 speaks again", by)
		}
	})
}

func TestDeadRouterIsPassedOverUntilItIsBack(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		mine := w.channel("r1")
		if by := w.answeredBy(mine, 100*time.Millisecond); by != "r1" {
			t.Fatalf("answered by %q", by)
		}
		r := w.routers["r1"]
		r.set(func() { r.delay = time.Second })
		to := newAnswers()
		w.ask(to, 1, mine)
		time.Sleep(50 * time.Millisecond)
		r.stop()
		time.Sleep(time.Second)
		if a := to.one(t, 1); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE {
			t.Fatal(a)
		}
		if by := w.answeredBy(mine, 100*time.Millisecond); by != w.second(mine).id {
			t.Errorf("answered by %q", by)
		}
		r.set(func() { r.delay = 0 })
		time.Sleep(time.Minute)
		r.start()
		time.Sleep(10 * time.Second)
		if by := w.answeredBy(mine, 100*time.Millisecond); by != "r1" {
			t.Errorf("answered by %q after r1 is back", by)
		}
	})
}

func TestLateAnswersAreIgnored(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		mine := w.channel("r1")
		r := w.routers["r1"]
		to := newAnswers()
		r.set(func() { r.delay = 1500 * time.Millisecond })
		w.ask(to, 1, mine)
		time.Sleep(time.Second)
		r.set(func() { r.delay = 2500 * time.Millisecond })
		w.ask(to, 2, mine) // the answer to 1 comes meanwhile: the router is alive
		time.Sleep(5 * time.Second)
		if a := to.one(t, 1); a.Status != gatewayv1.Status_STATUS_OK {
			t.Error(a)
		}
		if a := to.one(t, 2); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE {
			t.Error(a)
		}
	})
}

func TestNoRouterAnswersAtOnce(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		w.see()
		if by := w.answeredBy("chat:1", 0); by != "" {
			t.Errorf("answered by %q", by)
		}
		if _, err := w.u.Submit(w.t.Context(), &gatewayv1.Submission{Channel: "chat:1"}); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	})
}

func TestRouterThatLeavesTheViewLosesItsStream(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		mine := w.channel("r1")
		r := w.routers["r1"]
		r.set(func() { r.delay = time.Second })
		to := newAnswers()
		w.ask(to, 1, mine)
		time.Sleep(50 * time.Millisecond)
		w.see("r2", "r3")
		time.Sleep(200 * time.Millisecond)
		if a := to.one(t, 1); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE {
			t.Fatal(a)
		}
		if by := w.answeredBy(mine, 100*time.Millisecond); by != w.Snapshot().Owner(mine).Id {
			t.Errorf("answered by %q", by)
		}
	})
}

func TestQuestionsAreBounded(t *testing.T) {
	inBubble(t, func(c *Config) { c.MaxAsks = 10 }, func(w *world) {
		mine := w.channel("r1")
		r := w.routers["r1"]
		r.set(func() { r.silent = true })
		to := newAnswers()
		for id := range uint64(12) {
			w.ask(to, id, mine)
		}
		to.one(t, 10)
		to.one(t, 11)
		time.Sleep(3 * time.Second)
		for id := range uint64(12) {
			to.one(t, id)
		}
	})
}

func TestQuestionsBeforeAndAfterRunAreAnswered(t *testing.T) {
	w := &world{t: t}
	w.see("r1")
	cfg := Default()
	cfg.Edge, cfg.View, cfg.Peers = "edge-1", w, w
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	to := newAnswers()
	u.Ask(&gatewayv1.Ask{Id: 3, Channel: "a"}, to)
	to.one(t, 3)
}

func TestSubmitTriesAnotherRouterOnlyWhereThatIsSafe(t *testing.T) {
	for _, test := range []struct {
		name     string
		key      string
		break_   func(r *router)
		want     codes.Code
		fallback bool
	}{
		{name: "owner answers", break_: func(*router) {}},
		{name: "never reached, no key", break_: (*router).stop, fallback: true},
		{name: "failed after it was sent, no key", break_: func(r *router) { r.fail = codes.Unavailable }, want: codes.Unavailable},
		{name: "failed after it was sent, key", key: "k", break_: func(r *router) { r.fail = codes.Unavailable }, fallback: true},
		{name: "hangs, no key", break_: func(r *router) { r.hang = true }, want: codes.DeadlineExceeded},
		{name: "hangs, key", key: "k", break_: func(r *router) { r.hang = true }, fallback: true},
		{name: "refused, key", key: "k", break_: func(r *router) { r.fail = codes.InvalidArgument }, want: codes.InvalidArgument},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, nil, func(w *world) {
				mine := w.channel("r1")
				test.break_(w.routers["r1"])
				start := time.Now()
				result, err := w.u.Submit(w.t.Context(), &gatewayv1.Submission{Channel: mine, Key: test.key})
				if status.Code(err) != test.want {
					t.Fatal(err)
				}
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("took %v", d)
				}
				second := w.second(mine)
				if (second.calls == 1) != test.fallback {
					t.Errorf("%d calls of the second router", second.calls)
				}
				if want := map[bool]string{true: second.id, false: "r1"}[test.fallback]; err == nil && result.Message != want {
					t.Errorf("%s answered", result.Message)
				}
			})
		})
	}
}

func TestHistoryIsReadFromAnotherRouterIfNeedBe(t *testing.T) {
	inBubble(t, nil, func(w *world) {
		mine := w.channel("r1")
		w.routers["r1"].set(func() { w.routers["r1"].hang = true })
		page, err := w.u.ReadHistory(w.t.Context(), &routerv1.ReadHistoryRequest{Channel: mine})
		if err != nil || page.Epoch != w.second(mine).id {
			t.Fatalf("%v %v", page, err)
		}
		w.routers["r1"].set(func() { w.routers["r1"].hang, w.routers["r1"].fail = false, codes.FailedPrecondition })
		if _, err := w.u.ReadHistory(w.t.Context(), &routerv1.ReadHistoryRequest{Channel: mine}); status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
	})
}
