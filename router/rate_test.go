package router

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// The clock stands still, so that exactly the burst is taken; the rest is told when
// to come back, in whichever way it came.
func TestPublishesOverTheRateAreTold(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.Now = func() time.Time { return time.Unix(1_700_000_000, 0) }
		c.Namespaces["slow"] = namespace.Namespace{HistorySize: 10, Publish: namespace.Everyone, PublishPerSecond: 2, PublishBurst: 3}
	})
	if _, err := n.publishErr("slow:a", "no json", ""); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	n.publish1("slow:a", "1", "")
	batch, err := n.pub.PublishBatch(testContext(t), &routerv1.PublishBatchRequest{Publications: []*routerv1.Publication{
		event("slow:a", "2", ""), event("free:a", "1", ""), event("slow:b", "3", ""), event("slow:a", "4", ""),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.OK, codes.ResourceExhausted} {
		if f := batch.Results[i].GetFailure(); codes.Code(f.GetCode()) != want || f != nil && f.RetryAfterMs != 500 {
			t.Errorf("event %d: %v", i, batch.Results[i])
		}
	}
	_, err = n.publishErr("slow:a", "5", "")
	details := status.Convert(err).Details()
	if status.Code(err) != codes.ResourceExhausted || len(details) != 1 {
		t.Fatalf("%v, %v", err, details)
	}
	if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.RetryDelay.AsDuration() != time.Second {
		t.Errorf("details %v", details)
	}
	sub := &gatewayv1.Submission{Channel: "slow:a", Data: []byte("6"), From: "ann", ByClient: true}
	edge, err := n.edge.Submit(testContext(t), &gatewayv1.SubmitRequest{Submissions: []*gatewayv1.Submission{sub}})
	if err != nil || codes.Code(edge.Results[0].Code) != codes.ResourceExhausted || edge.Results[0].RetryAfterMs != 1500 {
		t.Errorf("from an edge: %v, %v", edge, err)
	}
	// Another router has counted it.
	edge, err = n.edge.Submit(testContext(t), &gatewayv1.SubmitRequest{Submissions: []*gatewayv1.Submission{sub}, Forwarded: true})
	if err != nil || edge.Results[0].Code != 0 {
		t.Errorf("forwarded: %v, %v", edge, err)
	}
	if got := len(n.stored("slow:a")); got != 3 {
		t.Errorf("%d events are stored", got)
	}
}
