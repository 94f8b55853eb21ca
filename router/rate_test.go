package router

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestRateGivesEachRefusedPublishATimeOfItsOwn(t *testing.T) {
	r := newRate("chat", &Namespace{PublishPerSecond: 10, PublishBurst: 2})
	now := time.Unix(1000, 0)
	var told []time.Duration
	for range 5 {
		after, _ := r.take(now)
		told = append(told, after)
	}
	if got := fmt.Sprint(told); got != "[0s 0s 100ms 200ms 300ms]" {
		t.Errorf("told %s", got)
	}
	if _, ok := r.take(now.Add(100 * time.Millisecond)); !ok {
		t.Error("who came back as told was refused")
	}
	if _, ok := r.take(now.Add(-time.Hour)); ok {
		t.Error("a clock that went back gave an event")
	}
	for range 1000 {
		if after, _ := r.take(now.Add(-time.Hour)); after <= 0 || after > rateHorizon {
			t.Fatalf("told %v", after)
		}
	}
	if newRate("chat", &Namespace{}) != nil {
		t.Error("no rate is a limit")
	}
}

// Over any span, no more than the burst and the rate times the span.
func TestRateHoldsOverEverySpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "rate"), rapid.IntRange(1, 50).Draw(t, "burst")
		r := newRate("chat", &Namespace{PublishPerSecond: perSecond, PublishBurst: burst})
		now, taken := time.Unix(1000, 0), []time.Time{}
		for range rapid.IntRange(1, 300).Draw(t, "publishes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "us")) * time.Microsecond)
			if _, ok := r.take(now); ok {
				taken = append(taken, now)
			}
		}
		for i, from := range taken {
			for j := i; j < len(taken); j++ {
				if most := float64(burst) + float64(perSecond)*taken[j].Sub(from).Seconds() + 1e-6; float64(j-i+1) > most {
					t.Fatalf("%d events in %v", j-i+1, taken[j].Sub(from))
				}
			}
		}
	})
}

// The clock stands still, so that exactly the burst is taken; the rest is told when
// to come back, in whichever way it came.
func TestPublishesOverTheRateAreTold(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.Now = func() time.Time { return time.Unix(1_700_000_000, 0) }
		c.Namespaces["slow"] = Namespace{HistorySize: 10, Publish: Everyone, PublishPerSecond: 2, PublishBurst: 3}
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
