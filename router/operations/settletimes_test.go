package operations

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// What edges tell in their figures, and who is gone, comes out as an incident with its
// arrivals, and in the metrics of the router that owns the region.
func TestLoadFiguresBecomeIncidents(t *testing.T) {
	registry := prometheus.NewRegistry()
	n, admin := startService(t, func(c *Config) { c.Registry = registry }, Deps{Members: &fakeMembers{}})
	ctx := context.Background()

	now := uint64(time.Now().UnixMilli()) / 200 * 200
	figure := func(id, region string, conns uint64, windows ...*gatewayv1.Window) *presence.Figure {
		return &presence.Figure{
			Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: 1, Region: region, Conns: conns,
			Windows: append(windows, &gatewayv1.Window{StartMs: now - 200}),
		}
	}
	n.Heard(figure("a", "eu", 0, &gatewayv1.Window{StartMs: now - 30_000, Told: 60, Left: 60}))
	for range 3 { // told again
		n.Heard(figure("b", "eu", 60, &gatewayv1.Window{StartMs: now - 29_000, Moved: 60, CaughtUp: 60, From: map[string]uint32{"a": 60}}))
	}
	var i *routerv1.Incident
	eventually(t, "the incident is told and counted", func() bool {
		answer, err := admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{Region: "eu"})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Incidents) == 1 {
			i = answer.Incidents[0]
		}
		return i != nil && settledCount(t, registry, "eu") == 1
	})
	if after := i.SettledMs - i.StartMs; after < 1000 || after > 1600 || i.Admitted != 60 || len(i.Causes) != 1 {
		t.Errorf("incident: %v", i)
	}
	if c := i.Causes[0]; c.Kind != "operation" || c.Id != "a" || c.Displaced != 60 || c.Back != 60 || c.CaughtUp != 60 {
		t.Errorf("cause: %v", c)
	}
	arrivals, err := admin.GetArrivals(ctx, &routerv1.GetArrivalsRequest{})
	if err != nil || len(arrivals.Windows) != 2 || !proto.Equal(arrivals.Windows[1], &routerv1.ArrivalWindow{StartMs: arrivals.Windows[1].StartMs, Moved: 60, CaughtUp: 60}) {
		t.Errorf("arrivals: %v, %v", arrivals, err)
	}

	n.Heard(figure("x", "us", 10))
	n.Gone(&presence.Member{Id: "x", Role: gatewayv1.Role_ROLE_EDGE, Incarnation: 1}, false)
	if _, err := admin.GetArrivals(ctx, &routerv1.GetArrivalsRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("arrivals of one of two regions: %v", err)
	}
	eventually(t, "the loss is told", func() bool {
		answer, err := admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{})
		return err == nil && len(answer.Incidents) == 2 && answer.Incidents[0].Region == "us" && answer.Incidents[0].Causes[0].Displaced == 10
	})
}

func settledCount(t *testing.T, registry *prometheus.Registry, region string) uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "spillway_router_settle_seconds" {
			continue
		}
		for _, m := range f.Metric {
			if label := m.Label[0]; proto.Equal(label, &dto.LabelPair{Name: proto.String("region"), Value: proto.String(region)}) {
				return m.GetHistogram().GetSampleCount()
			}
		}
	}
	return 0
}
