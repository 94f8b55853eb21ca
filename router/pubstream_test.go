package router

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
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
	eventually(t, "all are taken", func() bool { return r.sequencer.events.Load() == requests })
	ended := stop()
	eventually(t, "streams must end", r.stopping)
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
