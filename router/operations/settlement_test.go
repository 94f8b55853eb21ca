package operations

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestASettlementIsOverAllRegions(t *testing.T) {
	const start = 1_800_000_000_000
	cause := &routerv1.IncidentCause{Kind: "operation", Id: "op", StartMs: start, Displaced: 100, Back: 98, CaughtUp: 97}
	home := &routerv1.Incident{Region: "eu", StartMs: start, Causes: []*routerv1.IncidentCause{cause}}
	us := &routerv1.Incident{
		Region: "us", StartMs: start - 9_000, SettledMs: start + 20_400, PeakPerSecond: 900, Admitted: 98,
		Causes: []*routerv1.IncidentCause{{Kind: "lost", Id: "x", StartMs: start - 9_000, Displaced: 7}, cause},
	}
	asia := &routerv1.Incident{Region: "asia", StartMs: start, PeakPerSecond: 20, Causes: []*routerv1.IncidentCause{cause}}
	held := &gatewayv1.Operation{Id: "op", Region: "eu", State: gatewayv1.OperationState_OPERATION_STATE_HELD}
	running := &gatewayv1.Operation{Id: "op", Region: "eu", State: gatewayv1.OperationState_OPERATION_STATE_RUNNING}
	now := time.UnixMilli(start).Add(time.Minute)
	want := func(change func(*gatewayv1.Settlement)) *gatewayv1.Settlement {
		s := &gatewayv1.Settlement{StartMs: start, SettleMs: 20_400, Settled: true, PeakPerSecond: 135, Displaced: 100, Back: 98, CaughtUp: 97}
		change(s)
		return s
	}
	peak := func(region string, from, to uint64) float64 {
		if from != start || to <= from {
			t.Errorf("asked for the peak of %d to %d", from, to)
		}
		return map[string]float64{"us": 135, "asia": 20}[region]
	}
	for name, c := range map[string]struct {
		op        *gatewayv1.Operation
		incidents []*routerv1.Incident
		now       time.Time
		want      *gatewayv1.Settlement
	}{
		"another operation":    {&gatewayv1.Operation{Id: "other"}, []*routerv1.Incident{us}, now, nil},
		"all went elsewhere":   {held, []*routerv1.Incident{home, us}, now, want(func(*gatewayv1.Settlement) {})},
		"it still runs":        {running, []*routerv1.Incident{home, us}, now, want(func(s *gatewayv1.Settlement) { s.SettleMs, s.Settled = 0, false })},
		"one has not settled":  {held, []*routerv1.Incident{us, asia}, now, want(func(s *gatewayv1.Settlement) { s.SettleMs, s.Settled = 0, false })},
		"nobody came anywhere": {held, []*routerv1.Incident{home}, now, want(func(s *gatewayv1.Settlement) { s.SettleMs, s.Settled, s.PeakPerSecond = 0, false, 0 })},
		"five minutes later":   {held, []*routerv1.Incident{us}, now.Add(5 * time.Minute), want(func(s *gatewayv1.Settlement) { s.Final = true })},
		"given up": {held, []*routerv1.Incident{asia}, now.Add(9 * time.Minute), want(func(s *gatewayv1.Settlement) {
			s.SettleMs, s.Settled, s.PeakPerSecond, s.Final = 0, false, 20, true
		})},
	} {
		if got := settlementOf(c.op, c.incidents, peak, c.now); !proto.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// Operations tell how they settled, and go on to when the router that measured it is
// gone.
func TestAnOperationTellsHowItSettled(t *testing.T) {
	w := newWorld(t, &presence.Figure{Id: "b", Region: "eu"})
	ctx := testContext(t)
	now := uint64(time.Now().UnixMilli()) / 200 * 200
	op := &gatewayv1.Operation{
		Id: "op", Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "a", Region: "eu", Incarnation: 1, StartedMs: now - 41_000,
		State: gatewayv1.OperationState_OPERATION_STATE_DONE, EndedMs: now - 38_000,
	}
	if err := w.agree.PutOperation(ctx, op); err != nil {
		t.Fatal(err)
	}
	figure := func(id string, windows ...*gatewayv1.Window) *presence.Figure {
		return &presence.Figure{
			Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: 1, Region: "eu", Windows: append(windows, &gatewayv1.Window{StartMs: now - 200}),
		}
	}
	eventually(t, "the operation is known", func() bool { return w.agree.Operation("op") != nil })
	w.service.times.step(w.agree.Operations())
	w.service.Heard(figure("a", &gatewayv1.Window{StartMs: now - 40_000, Told: 60, Left: 60}))
	w.service.Heard(figure("b", &gatewayv1.Window{StartMs: now - 39_000, Moved: 60, CaughtUp: 60, From: map[string]uint32{"a": 60}}))
	eventually(t, "it is told and written down", func() bool {
		list, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		m, kept := list.Operations[0].Settlement, w.agree.Operation("op").Settlement
		return m.GetSettled() && m.Displaced == 60 && m.Back == 60 && m.PeakPerSecond == 60 && m.SettleMs >= 1_000 && m.SettleMs <= 1_600 &&
			kept.GetSettled() && kept.SettleMs == m.SettleMs && !kept.Final
	})
	_, fresh := startService(t, nil, Deps{Members: w.members, Control: w.agree, Messenger: w.bus})
	list, err := fresh.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil || !list.Operations[0].Settlement.GetSettled() || list.Operations[0].Settlement.Displaced != 60 {
		t.Errorf("a router that has just started says %v, %v", list, err)
	}
}
