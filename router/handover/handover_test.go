package handover

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// table is channels that wait to be handed over, and what has become of them.
type table struct {
	mu        sync.Mutex // guards below
	waiting   []*channel.Handed
	given     []string
	returned  []string
	accepted  []*channel.Handed
	withdrawn int
	viewed    int
	released  int
	nobody    []string
	awaiting  map[string]bool
	takings   map[string]gatewayv1.Taking
}

func (t *table) Pack(_ string, most int, _ int64) []*channel.Handed {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(most, len(t.waiting))
	some := t.waiting[:n]
	t.waiting = t.waiting[n:]
	return some
}

func (t *table) Given(h *channel.Handed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = append(t.given, h.Meta.Channel)
}

func (t *table) Returned(h *channel.Handed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.returned = append(t.returned, h.Meta.Channel)
}

func (t *table) Accept(h *channel.Handed, _ *namespace.Namespace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.accepted = append(t.accepted, h)
}

func (t *table) Asked(_ string, _ uint64, names []string) []gatewayv1.Taking {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]gatewayv1.Taking, len(names))
	for i, name := range names {
		all[i] = t.takings[name]
	}
	return all
}

func (t *table) Awaiting(names []string) (kept []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if t.awaiting[name] {
			kept = append(kept, name)
		}
	}
	return kept
}

func (t *table) Nobody(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nobody = append(t.nobody, name)
}

func (t *table) Withdraw(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.withdrawn += len(t.waiting)
	t.waiting = nil
}

func (t *table) Viewed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewed++
}

func (t *table) Offered() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.waiting))
}

func (t *table) Release(*channel.Publication) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released++
}

// clear says that nobody has so many channels.
func (t *table) clear(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nobody) == n
}

// looked says that channels were looked at because of a view.
func (t *table) looked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewed > 0
}

// told is what has become of the channels, in short.
func (t *table) told() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%d given, %d returned, %d withdrawn", len(t.given), len(t.returned), t.withdrawn)
}

// members is a membership of two routers that stays.
type members struct{ changed chan struct{} }

func (m members) Snapshot() *presence.Snapshot { return both }
func (m members) Changed() <-chan struct{}     { return m.changed }
func (m members) Incarnation() uint64          { return 0 }
func (m members) LeaseLosses() uint64          { return 0 }

var both = presence.NewSnapshot([]*presence.Member{
	{Id: "a", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING},
	{Id: "b", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING},
}, 16)

// peers has one connection, to whatever stands for the other router.
type peers struct{ conn *grpc.ClientConn }

func (p peers) Conn(*presence.Member) (*grpc.ClientConn, error) { return p.conn, nil }
func (p peers) Down(*presence.Member) bool                      { return false }

func newHandover(id string, t *table, p Peers) *Handover {
	members := members{make(chan struct{})}
	return New(Config{
		ID: id, Wait: 200 * time.Millisecond, Grace: time.Second, Timeout: 800 * time.Millisecond, PassDeadline: time.Second, MaxChannelBytes: 64 << 20,
	}, Deps{
		Channels: t, Namespaces: namespace.NewSet(nil, true), Peers: p, Log: slog.New(slog.DiscardHandler),
		Views: views.New(views.Config{Self: id, PauseLimit: time.Hour}, members),
		Forward: func(_ context.Context, to *presence.Member, pubs []*channel.Publication) {
			for _, p := range pubs {
				p.Finish(channel.Result{Message: to.GetId()})
			}
		},
	})
}

// bad is a service that goes wrong after it has heard a message, if before says so.
type bad struct {
	gatewayv1.UnimplementedHandoverServiceServer
	hand func(grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error
	take func(*gatewayv1.TakeRequest) (*gatewayv1.TakeResponse, error)
}

func (b bad) Hand(s grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
	return b.hand(s)
}

func (b bad) Take(_ context.Context, r *gatewayv1.TakeRequest) (*gatewayv1.TakeResponse, error) {
	return b.take(r)
}

// serve answers as router b on the loopback; nil: it knows nothing of handing over.
func serve(t *testing.T, service gatewayv1.HandoverServiceServer) Peers {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if service != nil {
		gatewayv1.RegisterHandoverServiceServer(server, service)
	}
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return peers{conn}
}

func handed(name string, events, bytes int) *channel.Handed {
	h := &channel.Handed{Revision: 16, Meta: &gatewayv1.HandedChannel{Channel: name, Epoch: 7, Head: uint64(events), Base: 0, Moves: 1}}
	for i := range events {
		h.Events = append(h.Events, &gatewayv1.BusEvent{Offset: uint64(i + 1), Data: make([]byte, bytes)})
	}
	h.Keys = append(h.Keys, &gatewayv1.HandedKey{Key: "k", Offset: 1})
	return h
}

// give hands channels to whatever stands for router b, and waits until the giver has ended.
func give(t *testing.T, p Peers, all ...*channel.Handed) (*Handover, *table) {
	from := &table{waiting: all}
	h := newHandover("a", from, p)
	h.Offers("b")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	h.End(ctx)
	if ctx.Err() != nil {
		t.Fatal("the giver does not end")
	}
	return h, from
}

// Channels arrive whole, whatever their size, in messages that the receiver takes.
func TestChannelsArriveWhole(t *testing.T) {
	to := &table{}
	p := serve(t, Service{Handover: newHandover("b", to, nil), Stop: make(chan struct{})})
	all := []*channel.Handed{handed("chat:empty", 0, 0), handed("chat:large", 70, 100<<10), handed("chat:huge", 2, 3<<20), handed("chat:last", 3, 10)}
	for i := range 500 {
		all = append(all, handed(fmt.Sprint("chat:", i), 1, 10))
	}
	_, from := give(t, p, all...)
	if got, want := from.told(), fmt.Sprintf("%d given, 0 returned, 0 withdrawn", len(all)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(to.accepted) != len(all) {
		t.Fatalf("%d accepted", len(to.accepted))
	}
	for i, h := range to.accepted {
		want := all[i]
		if h.Meta.Channel != want.Meta.Channel || h.Revision != 16 || h.Meta.Head != want.Meta.Head || len(h.Keys) != 1 || len(h.Events) != len(want.Events) {
			t.Fatalf("%s: %d events, %d keys, at %d", h.Meta.Channel, len(h.Events), len(h.Keys), h.Revision)
		}
		for j, e := range h.Events {
			if e.Offset != uint64(j+1) || len(e.Data) != len(want.Events[j].Data) {
				t.Fatalf("%s: event %d is %d", h.Meta.Channel, j, e.Offset)
			}
		}
	}
}

// A message has its bound, but for one event that is larger; each channel ends in one.
func TestMessagesAreBounded(t *testing.T) {
	all := []*channel.Handed{handed("chat:a", 70, 100<<10), handed("chat:b", 2, 3<<20), handed("chat:c", 1, 10), handed("chat:d", 0, 0)}
	var ends []string
	for _, m := range split(all) {
		size, events := proto.Size(m.request), 0
		for _, c := range m.request.Channels {
			events += len(c.Events)
		}
		if size > messageBytes+1024 && events > 1 {
			t.Errorf("%d bytes in %d events", size, events)
		}
		for _, h := range m.ends {
			ends = append(ends, h.Meta.Channel)
		}
	}
	if got := strings.Join(ends, " "); got != "chat:a chat:b chat:c chat:d" {
		t.Errorf("ends of %s", got)
	}
}

// What the receiver has no room for of one channel is its oldest events.
func TestTheOldestEventsGoPastTheBound(t *testing.T) {
	var j join
	part := handed("chat:a", 10, 1000)
	c := proto.CloneOf(part.Meta)
	c.Events, c.More = part.Events[:5], true
	if j.add(c, 16, 4000) != nil {
		t.Error("half of a channel counts")
	}
	c = proto.CloneOf(part.Meta)
	c.Events, c.Keys = part.Events[5:], part.Keys
	h := j.add(c, 32, 4000)
	if len(h.Events) != 3 || h.Events[2].Offset != 10 || len(h.Keys) != 1 || h.Revision != 32 {
		t.Errorf("%d events, %d keys, at %d", len(h.Events), len(h.Keys), h.Revision)
	}
}

// ending is the real service, whose streams end by chance of the test: after so many
// messages were taken, before the answer.
func ending(s Service, after int64, messages *atomic.Int64) bad {
	return bad{hand: func(stream grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
		name := new(byte)
		for {
			request, err := stream.Recv()
			if err != nil {
				return nil
			}
			answer := s.accept(stream.Context(), request, name)
			if request.Seq > 0 && messages.Add(1) == after {
				return status.Error(codes.Unavailable, "cut")
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}}
}

// An answer that was lost is asked for again; what was taken is not taken twice.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	to := &table{}
	var messages atomic.Int64
	p := serve(t, ending(Service{Handover: newHandover("b", to, nil)}, 2, &messages))
	all := []*channel.Handed{handed("chat:a", 30, 100<<10), handed("chat:b", 30, 100<<10), handed("chat:c", 1, 1)}
	_, from := give(t, p, all...)
	if got := from.told(); got != "3 given, 0 returned, 0 withdrawn" || len(to.accepted) != 3 {
		t.Errorf("%s, %d accepted", got, len(to.accepted))
	}
	for i, h := range to.accepted {
		if len(h.Events) != len(all[i].Events) {
			t.Errorf("%s has %d events", h.Meta.Channel, len(h.Events))
		}
	}
}

// A receiver that was started anew gets no message a second time: what was in it is lost,
// what came behind it is certainly not taken.
func TestANewLifeGetsNothingTwice(t *testing.T) {
	old, young := &table{}, &table{}
	var messages atomic.Int64
	lives := []bad{ending(Service{Handover: newHandover("b", old, nil)}, 1, &messages), ending(Service{Handover: newHandover("b", young, nil)}, -1, &messages)}
	var streams atomic.Int64
	p := serve(t, bad{hand: func(s grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
		return lives[min(streams.Add(1), 2)-1].hand(s)
	}})
	h, from := give(t, p, handed("chat:a", 1, 1), handed("chat:b", 30, 100<<10), handed("chat:c", 30, 100<<10))
	if got := from.told(); got != "1 given, 2 returned, 0 withdrawn" || len(young.accepted) != 0 || len(old.accepted) != 1 {
		t.Errorf("%s, %d and %d accepted", got, len(old.accepted), len(young.accepted))
	}
	if h.failed.Load() {
		t.Error("the new life was given up")
	}
}

// A receiver that leaves takes nothing, and says so.
func TestWhoLeavesRefuses(t *testing.T) {
	to := &table{}
	b := newHandover("b", to, nil)
	b.closed.Store(true)
	h, from := give(t, serve(t, Service{Handover: b, Stop: make(chan struct{})}), handed("chat:a", 1, 1), handed("chat:b", 30, 100<<10))
	if got := from.told(); got != "0 given, 2 returned, 0 withdrawn" || len(to.accepted) != 0 || h.failed.Load() {
		t.Errorf("%s, %d accepted, failed %v", got, len(to.accepted), h.failed.Load())
	}
	if from.viewed == 0 {
		t.Error("nobody looks whom they belong to now")
	}
}

// A router of a version that knows no hand-over is left alone, at once.
func TestWhoKnowsNoHandoverIsLeftAlone(t *testing.T) {
	began := time.Now()
	_, from := give(t, serve(t, nil), handed("chat:a", 1, 1))
	from.mu.Lock()
	defer from.mu.Unlock()
	if len(from.given) != 0 || len(from.returned)+from.withdrawn != 1 || time.Since(began) > 500*time.Millisecond {
		t.Errorf("%d given, %d returned, %d withdrawn, %v", len(from.given), len(from.returned), from.withdrawn, time.Since(began))
	}
}

// A receiver that never answers gets nothing; one that stops answering has perhaps what it
// was sent, and nothing more.
func TestAReceiverThatHangs(t *testing.T) {
	hang := func(after int) bad {
		return bad{hand: func(s grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
			for range after {
				request, err := s.Recv()
				if err != nil {
					return nil
				}
				if err := s.Send(&gatewayv1.HandResponse{Seq: request.Seq, Life: 9}); err != nil {
					return err
				}
			}
			<-s.Context().Done()
			return nil
		}}
	}
	_, from := give(t, serve(t, hang(0)), handed("chat:a", 1, 1))
	if len(from.given) != 0 || len(from.returned)+from.withdrawn != 1 {
		t.Errorf("it never answers: %s", from.told())
	}
	_, from = give(t, serve(t, hang(1)), handed("chat:a", 30, 100<<10), handed("chat:b", 30, 100<<10))
	if got := from.told(); got != "1 given, 1 returned, 0 withdrawn" && got != "0 given, 2 returned, 0 withdrawn" {
		t.Errorf("it stops answering: %s", got)
	}
}

// Messages of an older stream are late, and so are those that came before.
func TestLateMessagesAreNotTaken(t *testing.T) {
	to := &table{}
	b := newHandover("b", to, nil)
	first, second := new(byte), new(byte)
	message := func(life, seq uint64, more bool) *gatewayv1.HandRequest {
		return &gatewayv1.HandRequest{Router: "a", Life: life, Seq: seq, Channels: []*gatewayv1.HandedChannel{{Channel: "chat:a", Epoch: 7, More: more}}}
	}
	b.accept(t.Context(), message(1, 0, false), first)
	b.accept(t.Context(), message(1, 1, true), first) // the first half of a channel
	b.accept(t.Context(), message(1, 0, false), second)
	if b.accept(t.Context(), message(1, 2, false), first) != nil {
		t.Error("a message of an older stream was taken")
	}
	if answer := b.accept(t.Context(), message(1, 1, true), second); answer == nil || answer.Seq != 1 || len(to.accepted) != 0 {
		t.Error("a message that came before was not answered")
	}
	if b.accept(t.Context(), message(1, 2, false), second); len(to.accepted) != 1 {
		t.Error("the second half was not taken")
	}
	b.accept(t.Context(), message(2, 0, false), second)
	if b.accept(t.Context(), message(1, 3, false), second) != nil || len(to.accepted) != 1 {
		t.Error("a message of an older life was taken")
	}
	b.accept(t.Context(), &gatewayv1.HandRequest{Router: "a", Life: 2, Seq: 1, Channels: []*gatewayv1.HandedChannel{{Channel: "chat:\x00"}}}, second)
	if len(to.accepted) != 1 {
		t.Error("a channel whose name cannot be was taken")
	}
}

// All others are asked for what is waited for, until one has it or nobody does.
func TestOthersAreAskedUntilItIsClear(t *testing.T) {
	var mu sync.Mutex
	asked := make(map[string]int)
	p := serve(t, bad{take: func(r *gatewayv1.TakeRequest) (*gatewayv1.TakeResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		response := &gatewayv1.TakeResponse{}
		for _, name := range r.Channels {
			asked[name]++
			taking := gatewayv1.Taking_TAKING_NOTHING
			switch {
			case name == "chat:coming":
				taking = gatewayv1.Taking_TAKING_COMING
			case name == "chat:later" && asked[name] < 3:
				taking = gatewayv1.Taking_TAKING_LATER
			}
			response.Results = append(response.Results, &gatewayv1.TakeResult{Taking: taking})
		}
		return response, nil
	}})
	to := &table{awaiting: map[string]bool{"chat:nobody": true, "chat:later": true, "chat:coming": true}}
	h := newHandover("a", to, p)
	ctx, cancel := context.WithCancel(context.Background())
	began, ended := time.Now(), make(chan struct{})
	go func() { // ends with ctx, below
		_ = h.Run(ctx)
		close(ended)
	}()
	for _, name := range []string{"chat:nobody", "chat:later", "chat:coming", "chat:over"} {
		h.Seek(name)
	}
	for time.Since(began) < 10*time.Second && !to.clear(2) {
		pause(ctx, time.Millisecond)
	}
	cancel()
	<-ended
	if asked["chat:nobody"] != 1 || asked["chat:later"] != 3 || asked["chat:over"] != 0 || asked["chat:coming"] > 1+int(time.Since(began)/askComing) {
		t.Errorf("asked %v", asked)
	}
	if got := strings.Join(to.nobody, " "); got != "chat:nobody chat:later" {
		t.Errorf("nobody has %s", got)
	}
}

// A router that leaves waits for all that can be given, also when one receiver has failed.
func TestLeavingGivesWhatCanBeGiven(t *testing.T) {
	from := &table{waiting: []*channel.Handed{handed("chat:a", 1, 1)}}
	h := newHandover("a", from, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	left := make(chan struct{})
	go func() { // ends when nothing is offered any more, below
		h.Leave(ctx)
		close(left)
	}()
	for !from.looked() {
		pause(ctx, time.Millisecond)
	}
	h.failed.Store(true)
	select {
	case <-left:
		t.Error("it has left, and a channel was on its way")
	case <-time.After(100 * time.Millisecond):
	}
	from.Withdraw("b")
	<-left
	if ctx.Err() != nil || !h.closed.Load() {
		t.Error("it has not left")
	}
}

// Another router is answered channel by channel, and told of its mistakes.
func TestTakeAnswersEachChannel(t *testing.T) {
	to := &table{takings: map[string]gatewayv1.Taking{"chat:b": gatewayv1.Taking_TAKING_COMING}}
	s := Service{Handover: newHandover("b", to, nil)}
	response, err := s.Take(context.Background(), &gatewayv1.TakeRequest{Router: "a", Revision: 16, Channels: []string{"chat:a", "chat:b"}})
	if err != nil || len(response.Results) != 2 || response.Results[1].Taking != gatewayv1.Taking_TAKING_COMING {
		t.Errorf("%v, %v", response, err)
	}
	for _, names := range [][]string{{"chat:\x00"}, make([]string, maxTake+1)} {
		if _, err := s.Take(context.Background(), &gatewayv1.TakeRequest{Channels: names}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d names: %v", len(names), err)
		}
	}
}

// Publications that are passed on give their place back once, also after the end.
func TestPassedPublicationsGiveTheirPlaceBack(t *testing.T) {
	from := &table{}
	h := newHandover("a", from, nil)
	make3 := func() (pubs []*channel.Publication, call *channel.Call) {
		call = channel.NewCall(3)
		for range 3 {
			p := &channel.Publication{Channel: "chat:a", Namespace: &namespace.Namespace{}, Call: call}
			p.Take()
			pubs = append(pubs, p)
		}
		return pubs, call
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	pubs, call := make3()
	h.Pass("b", pubs[:1])
	h.Pass("b", pubs[1:])
	if r := call.Wait(ctx, pubs); r[0].Message != "b" || r[2].Message != "b" {
		t.Errorf("%+v", r)
	}
	h.End(ctx)
	pubs, call = make3()
	h.Pass("b", pubs)
	if r := call.Wait(ctx, pubs); r[0] != channel.NotOwner || r[2] != channel.NotOwner {
		t.Errorf("after the end: %+v", r)
	}
	if from.released != 6 {
		t.Errorf("%d places were given back", from.released)
	}
}

// Two routers that do not see the same pass a publication back and forth. It does not wait
// behind the message in which it went the same way before, since that waits for it.
func TestAPublicationThatComesBackDoesNotWaitForItself(t *testing.T) {
	h := newHandover("a", &table{}, nil)
	back := &channel.Publication{Channel: "chat:a", Namespace: &namespace.Namespace{}, Call: channel.NewCall(1), Forwarded: true, Hops: 1}
	back.Take()
	h.Forward = func(ctx context.Context, _ *presence.Member, pubs []*channel.Publication) {
		if pubs[0] != back {
			h.Pass("b", []*channel.Publication{back}) // b has sent it back
			back.Call.Wait(ctx, nil)
		}
		pubs[0].Finish(channel.Result{Offset: 1})
	}
	p := &channel.Publication{Channel: "chat:a", Namespace: &namespace.Namespace{}, Call: channel.NewCall(1)}
	p.Take()
	h.Pass("b", []*channel.Publication{p})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	began := time.Now()
	if r := p.Call.Wait(ctx, []*channel.Publication{p}); r[0].Offset != 1 || time.Since(began) > h.cfg.PassDeadline/2 {
		t.Errorf("%+v after %v", r, time.Since(began))
	}
	h.End(ctx)
}
