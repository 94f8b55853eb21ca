package router

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// What a stream's router took before it left is answered, in order; then the stream ends.
func TestAStreamIsAnsweredWhileTheRouterLeaves(t *testing.T) {
	store := hold()
	r, stop := running(t, store, func(*Config) {})
	conn, err := grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := routerv1.NewPublisherServiceClient(conn).PublishStream(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	const requests = 5
	for range requests {
		if err := stream.Send(&routerv1.PublishStreamRequest{Publications: []*routerv1.Publication{event("chat:a", `1`, "")}}); err != nil {
			t.Fatal(err)
		}
	}
	<-store.entered
	eventually(t, "all are taken", func() bool { return waiting(r) == requests })
	ended := stop()
	eventually(t, "streams must end", func() bool { return stopping(r) })
	close(store.free)
	for i := range requests {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("request %d was taken, and the stream ended with %v", i, err)
		}
		if offset := response.Results[0].GetPlaced().GetOffset(); offset != uint64(i+1) {
			t.Errorf("request %d: %v", i, response.Results[0])
		}
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A request that waits for the ones before it (the view has changed) holds up no answer of
// its stream, also while the router leaves.
func TestAWaitingRequestHoldsNoAnswers(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.Committers, c.API.PublishDeadline, c.StoreTimeout, c.StopTimeout = 2, 18*time.Second, 18*time.Second, 19*time.Second
		c.Namespaces["rated"] = namespace.Namespace{Durability: namespace.None, PublishPerSecond: 1, PublishBurst: 1}
		c.Now = func() time.Time { return time.Unix(1_700_000_000, 0) }
	})
	n.publish1("rated:a", `1`, "") // those that follow are refused, and counted
	n.publish1("chat:a", `1`, "")
	n.publish1("chat:b", `1`, "")
	gates := map[string]chan struct{}{"chat:a": make(chan struct{}), "chat:b": make(chan struct{})}
	n.store.onAppend(func(_ context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		<-gates[runs[0].Channel]
		return next()
	})
	release := sync.OnceFunc(func() { close(gates["chat:b"]) })
	defer release()
	streams := make([]grpc.BidiStreamingClient[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse], 8)
	send := func(i int, channels ...string) {
		t.Helper()
		request := &routerv1.PublishStreamRequest{}
		for _, channel := range channels {
			request.Publications = append(request.Publications, event(channel, `1`, ""))
		}
		if err := streams[i].Send(request); err != nil {
			t.Fatal(err)
		}
	}
	appends, _, _ := n.store.counts()
	hung := func(channel string) {
		t.Helper()
		send(0, channel)
		appends++
		eventually(t, channel+" hangs", func() bool { a, _, _ := n.store.counts(); return a == appends })
	}
	for i := range streams {
		var err error
		if streams[i], err = n.pub.PublishStream(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	hung("chat:a")
	for i := range streams[1:] {
		send(i+1, "chat:a")
	}
	for i := range streams {
		send(i, fmt.Sprint("brief:", i))
	}
	eventually(t, "what needs no store is done", func() bool { return len(n.bus.all()) == 3+len(streams) })
	hung("chat:b")
	for i := range streams[1:] {
		send(i+1, "chat:b")
	}
	eventually(t, "all are taken", func() bool { return waiting(n.Router) == int64(2*len(streams)) })
	n.members.set(snapshotOf(2, routerMember(n.cfg.ID, "")))
	for i := range streams {
		send(i, fmt.Sprint("brief:", i), "rated:a")
	}
	eventually(t, "the last ones wait", func() bool { return n.counter("spillway_router_publishes_rate_limited_total") == float64(len(streams)) })
	n.stop()
	eventually(t, "streams must end", func() bool { return stopping(n.Router) })
	answers := make(chan error, 2*len(streams))
	for _, stream := range streams {
		go func() { // ends with the two answers, or with the stream
			for range 2 {
				response, err := stream.Recv()
				if err == nil && response.Results[0].GetPlaced() == nil {
					err = fmt.Errorf("answered %v", response.Results[0])
				}
				answers <- err
			}
		}()
	}
	close(gates["chat:a"])
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for got := range cap(answers) {
		select {
		case err := <-answers:
			if err != nil {
				t.Fatal(err)
			}
		case <-late.C:
			t.Fatalf("%d of %d answers came while later requests wait", got, cap(answers))
		}
	}
	release()
	for i, stream := range streams {
		for range 2 {
			if response, err := stream.Recv(); err != nil || response.Results[0].GetPlaced() == nil {
				t.Errorf("stream %d, what was taken: %v, %v", i, response, err)
			}
		}
	}
}

// Requests that ran out of time are not waited for when owners change: the stream goes on
// as soon as the store does.
func TestAStreamGoesOnAfterRequestsThatRanOutOfTime(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.API.PublishDeadline, c.StoreTimeout = 2*time.Second, 20*time.Second })
	n.publish1("chat:a", `1`, "")
	release := n.hang()
	defer release()
	stream, err := n.pub.PublishStream(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := func() *routerv1.PublishResult {
		t.Helper()
		if err := stream.Send(&routerv1.PublishStreamRequest{Publications: []*routerv1.Publication{event("chat:a", `1`, "")}}); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return response.Results[0]
	}
	for range 2 { // one is in the commit, one behind it
		if r := ask(); codes.Code(r.GetFailure().GetCode()) != codes.Unavailable {
			t.Fatalf("the store hangs: %v", r)
		}
	}
	n.store.onAppend(nil)
	release()
	eventually(t, "nothing waits", func() bool { return waiting(n.Router) == 0 })
	n.members.set(snapshotOf(2, routerMember(n.cfg.ID, "")))
	if r := ask(); r.GetPlaced() == nil {
		t.Errorf("after the store is back: %v", r)
	}
}
