package router_test

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// cell is what stands in DESIGN.md, "What an ack means", for one durability and one
// failure: of the events a, b, c, ... that were published, which are there at the end.
type cell struct {
	left    string // all events, in order
	refused string // those that were not acked
	epoch   string // "same", or "new": a position of before is not recovered
}

// One test for each cell of the table: real NATS, a store on SQLite, a router killed
// without its goodbye. Whatever is acked and not left must have ended its epoch.
func TestWhatAnAckMeans(t *testing.T) {
	failures := []struct {
		name            string
		fail            func(*ground)
		committed, none cell
	}{
		{"router killed", routerKilled,
			cell{"a b c", "", "same"}, cell{"", "", "new"}},
		{"router stopped in order", routerStopped,
			cell{"a b c", "", "same"}, cell{"", "", "new"}},
		{"router stopped in order while the store is away", routerStoppedStoreAway,
			cell{"a b", "c", "same"}, cell{"", "", "new"}},
		{"store away", storeAway,
			cell{"a b d", "c", "same"}, cell{"a b c d", "", "same"}},
		{"store lost its newest commits", storeLost,
			cell{"a c", "", "new"}, cell{"a b c", "", "same"}},
		{"bus away", busAway,
			cell{"a b c", "", "same"}, cell{"a b c", "", "same"}},
		{"bus away, router killed", busAwayRouterKilled,
			cell{"a b c", "", "same"}, cell{"", "", "new"}},
		{"bus and store away", busAndStoreAway,
			cell{"a b", "c", "same"}, cell{"a b c", "", "same"}},
		{"two owners", twoOwners,
			cell{"a b c d", "", "same"}, cell{"d", "", "new"}},
	}
	for _, f := range failures {
		for d, want := range map[namespace.Durability]cell{namespace.Committed: f.committed, namespace.None: f.none} {
			t.Run(f.name+"/"+d.String(), func(t *testing.T) {
				t.Parallel()
				newGround(t, d).check(f.fail, want)
			})
		}
	}
}

// channelOf is the channel that a test of a durability publishes on.
func channelOf(d namespace.Durability) string { return d.String() + ":room" }

// ground is a store, a bus, and the routers of one test; r is the one that is asked.
type ground struct {
	t       *testing.T
	d       namespace.Durability
	store   *fileStore
	nats    *natsserver.Server
	port    int
	r       *member
	started int

	acked, refused []string
	epoch          uint64 // of b
	offset         uint64
}

func newGround(t *testing.T, d namespace.Durability) *ground {
	g := &ground{t: t, d: d, store: newFileStore(t)}
	g.busBack()
	t.Cleanup(func() { g.nats.Close() })
	g.r = g.start()
	return g
}

// check publishes a and b, lets something fail around c and d, and looks what is left.
func (g *ground) check(fail func(*ground), want cell) {
	g.t.Helper()
	g.publish("a")
	g.store.save()
	g.publish("b")
	at := g.ask(&gatewayv1.Ask{Channel: channelOf(g.d)})
	g.epoch, g.offset = at.Epoch, at.Head
	fail(g)
	if got := strings.Join(g.refused, " "); got != want.refused {
		g.t.Errorf("refused: %q, want %q", got, want.refused)
	}
	g.eventually("left: "+want.left, func() string { return strings.Join(g.left(), " ") }, want.left)
	a := g.ask(&gatewayv1.Ask{Channel: channelOf(g.d), Epoch: &g.epoch, Offset: g.offset})
	epoch := "same"
	if a.Epoch != g.epoch {
		epoch = "new"
	}
	if epoch != want.epoch || a.Recovered != (epoch == "same") {
		g.t.Errorf("a position of before: %v, was epoch %d, want the %s epoch", a, g.epoch, want.epoch)
	}
	if a.Epoch < g.epoch {
		g.t.Errorf("epoch %d after %d: edges would drop what comes", a.Epoch, g.epoch)
	}
	for _, event := range g.acked {
		if epoch == "same" && !strings.Contains(want.left, event) {
			g.t.Errorf("%s was acked, is not left, and nobody was told", event)
		}
	}
}

func routerKilled(g *ground) {
	g.publish("c")
	g.r.kill()
	g.r = g.start()
}

func routerStopped(g *ground) {
	g.publish("c")
	g.r.stop()
	g.r = g.start()
}

func routerStoppedStoreAway(g *ground) {
	g.store.cut(true)
	g.publish("c")
	g.r.stop()
	g.store.cut(false)
	g.r = g.start()
}

func storeAway(g *ground) {
	g.store.cut(true)
	g.publish("c")
	g.store.cut(false)
	g.publishUntilAcked("d")
}

func storeLost(g *ground) {
	g.store.restore()
	g.publish("c")
}

func busAway(g *ground) {
	g.nats.Close()
	g.publish("c")
	// An edge that hears nothing asks: the bus is not needed for that.
	if a := g.ask(&gatewayv1.Ask{Channel: channelOf(g.d), Epoch: &g.epoch, Offset: g.offset}); len(a.Events) != 1 {
		g.t.Errorf("fetched: %v", a)
	}
	g.busBack()
}

func busAwayRouterKilled(g *ground) {
	g.nats.Close()
	g.publish("c")
	g.r.kill()
	g.busBack()
	g.r = g.start()
}

func busAndStoreAway(g *ground) {
	g.nats.Close()
	g.store.cut(true)
	g.publish("c")
	g.store.cut(false)
	g.busBack()
}

func twoOwners(g *ground) {
	old := g.r
	g.publish("c")
	g.r = g.start() // its view gives it the channel; the old one has not heard of it
	g.publish("d")
	old.members.set(g.r.members.Snapshot())
	old.stop()
}

func (g *ground) publish(data string) {
	g.t.Helper()
	if err := g.try(data); err != nil {
		g.refused = append(g.refused, data)
		return
	}
	g.acked = append(g.acked, data)
}

func (g *ground) publishUntilAcked(data string) {
	g.eventually(data+" is acked", func() string {
		if err := g.try(data); err != nil {
			return err.Error()
		}
		return ""
	}, "")
	g.acked = append(g.acked, data)
}

func (g *ground) try(data string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := routerv1.NewPublisherServiceClient(g.r.conn).Publish(ctx, &routerv1.PublishRequest{Publication: &routerv1.Publication{
		Channel: channelOf(g.d), Data: &routerv1.Publication_Json{Json: strconv.Quote(data)}, Key: data,
	}})
	return err
}

// left is what backends read of the channel.
func (g *ground) left() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	page, err := routerv1.NewHistoryServiceClient(g.r.conn).ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: channelOf(g.d)})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for i, e := range page.Events {
		if i > 0 && e.Offset != page.Events[i-1].Offset+1 {
			out = append(out, "HOLE")
		}
		out = append(out, strings.Trim(e.GetJson(), `"`))
	}
	return out
}

// ask is what an edge does.
func (g *ground) ask(a *gatewayv1.Ask) *gatewayv1.Answer {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := gatewayv1.NewEdgeServiceClient(g.r.conn).Sync(ctx)
	for err == nil {
		if err = stream.Send(&gatewayv1.SyncRequest{Edge: "e1", Asks: []*gatewayv1.Ask{a}}); err != nil {
			break
		}
		var response *gatewayv1.SyncResponse
		if response, err = stream.Recv(); err == nil && response.Answers[0].Status == gatewayv1.Status_STATUS_OK {
			return response.Answers[0]
		}
	}
	g.t.Fatalf("ask: %v", err)
	return nil
}

func (g *ground) eventually(what string, is func() string, want string) {
	g.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	got := is()
	for ; got != want; got = is() {
		if time.Now().After(deadline) {
			g.t.Fatalf("not within 20 s: %s; it is %q", what, got)
		}
		<-tick.C
	}
}

// busBack starts the bus, where it was before.
func (g *ground) busBack() {
	g.t.Helper()
	s, err := natsserver.Start(context.Background(), g.port)
	if err != nil {
		g.t.Fatal(err)
	}
	at, err := url.Parse(s.URL())
	if err != nil {
		g.t.Fatal(err)
	}
	g.nats = s
	g.port, _ = strconv.Atoi(at.Port())
}
