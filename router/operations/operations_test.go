package operations

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestADrainSaysWhatItNeedsThenBegins(t *testing.T) {
	w := newWorld(t,
		&presence.Figure{Id: "e1", Region: "eu", Conns: 9_000, Headroom: 500, MovedPerSecond: 400},
		&presence.Figure{Id: "e2", Region: "eu", Conns: 100, Headroom: 5_000, MovedPerSecond: 400},
		&presence.Figure{Id: "e3", Region: "eu", Conns: 100, Headroom: 3_000, MovedPerSecond: 500},
		&presence.Figure{Id: "e4", Region: "eu", Conns: 100, Headroom: 3_000, MovedPerSecond: 500, State: gatewayv1.State_STATE_DRAINING},
		&presence.Figure{Id: "u1", Region: "us", Conns: 100, Headroom: 9_000, MovedPerSecond: 500})
	ctx := testContext(t)
	plan, err := w.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: "e1", DryRun: true})
	if err != nil || plan.Operation != "" || plan.Conns != 9_000 || plan.Headroom != 8_000 || plan.PerSecond != 900 || plan.PlannedMs != 10_000 ||
		!strings.Contains(plan.Message, "1000 clients go to other regions") || len(w.agree.Operations()) != 0 {
		t.Errorf("the dry run says %v, %v", plan, err)
	}
	for node, want := range map[string]codes.Code{"e9": codes.NotFound, "r1": codes.InvalidArgument, "e4": codes.FailedPrecondition} {
		_, err := w.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: node})
		wantCode(t, err, want)
	}
	begun, err := w.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: "e1", DeadlineMs: 25_000})
	if err != nil {
		t.Fatal(err)
	}
	op := w.agree.Operation(begun.Operation)
	if op == nil || op.Node != "e1" || op.Incarnation != 7 || op.DeadlineMs != 25_000 || op.Cause != "api" {
		t.Errorf("the record is %v", op)
	}
	_, err = w.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: "e1"})
	wantCode(t, err, codes.FailedPrecondition, "leaving already")
	if _, err := w.admin.UndrainNode(ctx, &routerv1.UndrainNodeRequest{Node: "e1"}); err != nil {
		t.Error(err)
	}
	if op := w.agree.Operation(begun.Operation); op.State != gatewayv1.OperationState_OPERATION_STATE_ABORTED {
		t.Errorf("after undrain it is %v", op)
	}
	_, err = w.admin.UndrainNode(ctx, &routerv1.UndrainNodeRequest{Node: "e1"})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = w.admin.AbortOperation(ctx, &routerv1.AbortOperationRequest{Operation: begun.Operation})
	wantCode(t, err, codes.FailedPrecondition, "has ended")
	_, err = w.admin.AbortOperation(ctx, &routerv1.AbortOperationRequest{Operation: "x"})
	wantCode(t, err, codes.NotFound)
}

func TestADrainBySignalIsNotUndone(t *testing.T) {
	w := newWorld(t, &presence.Figure{Id: "e1", Region: "eu", State: gatewayv1.State_STATE_DRAINING})
	op := &gatewayv1.Operation{Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "e1", Incarnation: 7, Cause: "signal"}
	if err := w.agree.PutOperation(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	_, err := w.admin.UndrainNode(testContext(t), &routerv1.UndrainNodeRequest{Node: "e1"})
	wantCode(t, err, codes.FailedPrecondition, "told to")
}

// Figures come by the bus, the end by the record; a watcher sees both.
func TestAWatchShowsProgressToTheEnd(t *testing.T) {
	w := newWorld(t, &presence.Figure{Id: "e1", Region: "eu"})
	ctx := testContext(t)
	op := &gatewayv1.Operation{Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "e1", Incarnation: 7}
	if err := w.agree.PutOperation(ctx, op); err != nil {
		t.Fatal(err)
	}
	stream, err := w.admin.WatchOperation(ctx, &routerv1.WatchOperationRequest{Operation: op.Id})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *routerv1.Operation {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r.Operation
	}
	if first := next(); first.State != "running" || first.Kind != "drain" || first.Total != 0 {
		t.Errorf("first %v", first)
	}
	w.tell(&gatewayv1.Progress{Operation: op.Id, Edge: "e1", Total: 100, Moved: 30, Remaining: 70, PlannedMs: 5_000, AtMs: 2})
	w.tell(&gatewayv1.Progress{Operation: op.Id, Edge: "e1", Total: 100, Moved: 10, Remaining: 90, AtMs: 1}) // late
	if second := next(); second.Moved != 30 || second.Remaining != 70 || second.PlannedMs != 5_000 || len(second.Edges) != 1 {
		t.Errorf("second %v", second)
	}
	err = w.agree.UpdateOperation(ctx, op.Id, func(op *gatewayv1.Operation) bool {
		op.State = gatewayv1.OperationState_OPERATION_STATE_PARTLY
		op.Progress = []*gatewayv1.Progress{{Operation: op.Id, Edge: "e1", Total: 100, Moved: 97, Stragglers: 3, AtMs: 9, Ended: true}}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if last := next(); last.State != "partly" || last.Moved != 97 || last.Stragglers != 3 || last.EndedMs == 0 {
		t.Errorf("last %v", last)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on after the end")
	}
	list, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil || len(list.Operations) != 1 || list.Operations[0].Moved != 97 {
		t.Errorf("listed %v, %v", list, err)
	}
	stream, err = w.admin.WatchOperation(ctx, &routerv1.WatchOperationRequest{Operation: "none"})
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.NotFound)
}

// An edge that dies in the middle and comes back under its name tells its new part; what
// it had done before still counts, also when the record is written and read again.
func TestFiguresOfARestartedEdgeAddUp(t *testing.T) {
	table := newProgressTable()
	tell := func(p *gatewayv1.Progress) {
		p.Operation, p.Edge = "o", "e1"
		data, _ := proto.Marshal(p)
		table.hear(data)
	}
	tell(&gatewayv1.Progress{Incarnation: 7, Total: 100, Moved: 60, Closed: 5, Gone: 1, Remaining: 34, AtMs: 1})
	tell(&gatewayv1.Progress{Incarnation: 9, Total: 10, Moved: 3, Remaining: 7, AtMs: 2})
	op := &gatewayv1.Operation{Id: "o"}
	check := func(moved, remaining uint32, ended bool) {
		t.Helper()
		all := table.of(op)
		if len(all) != 1 {
			t.Fatalf("%d parts of one edge", len(all))
		}
		if p := all[0]; p.Total != 110 || p.Moved != moved || p.Closed != 5 || p.Gone != 35 || p.Remaining != remaining || p.Ended != ended {
			t.Errorf("%v", p)
		}
	}
	check(63, 7, false)
	op.Progress = []*gatewayv1.Progress{{Operation: "o", Edge: "e1", Incarnation: 9, Total: 10, Moved: 10, AtMs: 3, Ended: true}}
	check(70, 0, true)
	op.Progress = table.parts(op) // as the supervisor writes it
	check(70, 0, true)
	table.forget(func(string) bool { return false })
	check(70, 0, true)
}

func TestFiguresOnTheBusAreBounded(t *testing.T) {
	table := newProgressTable()
	for i := range maxProgress + 100 {
		data, _ := proto.Marshal(&gatewayv1.Progress{Operation: "o", Edge: fmt.Sprint("e", i), AtMs: uint64(i)})
		table.hear(data)
	}
	table.hear([]byte("nonsense"))
	table.hear(nil)
	if n := len(table.newest); n != maxProgress {
		t.Errorf("%d are kept", n)
	}
	if _, kept := table.newest[progressKey{"o", "e0", 0}]; kept {
		t.Error("the oldest was kept")
	}
	table.forget(func(string) bool { return false })
	if len(table.newest) != 0 {
		t.Error("figures of no operation are kept")
	}
}

func TestPrecheck(t *testing.T) {
	from := room{edges: 3, conns: 30_000, critical: 3_000}
	for _, c := range []struct {
		name   string
		to     room
		window time.Duration
		fits   bool
		words  string
	}{
		{"room and rate", room{edges: 3, headroom: 40_000, perSecond: 1_500}, time.Minute, true, ""},
		{"no room", room{edges: 3, headroom: 30_000, perSecond: 1_500}, time.Minute, false, "room for 24000"},
		{"nobody", room{}, time.Minute, false, "no edge of another region"},
		{"too fast", room{edges: 3, headroom: 40_000, perSecond: 1_500}, 10 * time.Second, false, "a window of 20s"},
		{"critical ones may use the reserve", room{edges: 30, headroom: 37_500, perSecond: 1_500}, time.Minute, true, ""},
		{"others may not", room{edges: 40, headroom: 37_500, perSecond: 1_500}, time.Minute, false, "not critical"},
		{"blind", room{edges: 3, headroom: 40_000, perSecond: 1_500, smallest: 100, blind: true}, time.Minute, false, "take 300"},
	} {
		got := precheck(from, c.to, c.window, 100, 80)
		if got.Fits != c.fits || !strings.Contains(got.Message, c.words) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Edges that die do not leave operations behind.
func TestAnOperationEndsWithItsEdge(t *testing.T) {
	now := time.Now()
	w := newWorld(t)
	s := newSupervisor(w.service)
	s.now = func() time.Time { return now }
	w.set(&presence.Figure{Id: "e2", Region: "eu"})
	seen := map[string]bool{}
	op := &gatewayv1.Operation{Id: "o", Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "e1", Incarnation: 7}
	if state, _ := s.verdict(op, nil, seen); state != gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED {
		t.Errorf("at once: %v", state)
	}
	now = now.Add(absentFor)
	if state, _ := s.verdict(op, nil, seen); state != gatewayv1.OperationState_OPERATION_STATE_FAILED {
		t.Errorf("killed: %v", state)
	}
	last := []*gatewayv1.Progress{{Edge: "e1", Ended: true, Stragglers: 2}}
	if state, _ := s.verdict(op, last, seen); state != gatewayv1.OperationState_OPERATION_STATE_PARTLY {
		t.Errorf("it could only tell the bus: %v", state)
	}
	op.Node = "e2"
	if state, _ := s.verdict(op, nil, seen); state != gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED {
		t.Errorf("alive: %v", state)
	}
	op.Incarnation = 6 // another process has its name now
	_, _ = s.verdict(op, nil, seen)
	now = now.Add(absentFor)
	if state, _ := s.verdict(op, nil, seen); state != gatewayv1.OperationState_OPERATION_STATE_FAILED {
		t.Errorf("replaced: %v", state)
	}
}

func TestRevokingAndDisconnecting(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	at := time.Now()
	for _, r := range []*routerv1.RevokeRequest{{User: "ann", TokenId: "t1"}, {User: "bob"}} {
		if _, err := w.admin.Revoke(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if !w.agree.Revoked("ann", "t1", at) || w.agree.Revoked("ann", "t2", at) || !w.agree.Revoked("bob", "", at.Add(-time.Second)) {
		t.Error("not revoked as asked")
	}
	if _, err := w.admin.Disconnect(ctx, &routerv1.DisconnectRequest{Session: "Hs16G_31KxXsTVh1RcIDZg"}); err != nil {
		t.Error(err)
	}
	if _, err := w.admin.Disconnect(ctx, &routerv1.DisconnectRequest{User: "ann", CloseCode: 4200}); err != nil {
		t.Error(err)
	}
	_, err := w.admin.Revoke(ctx, &routerv1.RevokeRequest{TokenId: "t"})
	wantCode(t, err, codes.InvalidArgument)
	_, err = w.admin.Revoke(ctx, &routerv1.RevokeRequest{User: "a", TokenId: "t", IssuedBeforeMs: 1})
	wantCode(t, err, codes.InvalidArgument)
	_, err = w.admin.Revoke(ctx, &routerv1.RevokeRequest{User: "a", IssuedBeforeMs: uint64(time.Now().Add(2 * time.Minute).UnixMilli())})
	wantCode(t, err, codes.InvalidArgument, "issued_before_ms", "lifted")
	if _, err = w.admin.Revoke(ctx, &routerv1.RevokeRequest{User: "a", IssuedBeforeMs: uint64(time.Now().Add(30 * time.Second).UnixMilli())}); err != nil {
		t.Errorf("a clock that is ahead: %v", err)
	}
	_, err = w.admin.Disconnect(ctx, &routerv1.DisconnectRequest{User: "a", Session: "s"})
	wantCode(t, err, codes.InvalidArgument)
	for _, wrong := range []string{"s", "Hs16G_31KxXsTVh1RcIDZ", "Hs16G_31KxXsTVh1RcIDZgA", "Hs16G+31KxXsTVh1RcIDZg", "Hs16G_31KxXsTVh1RcIDZg\n"} {
		_, err = w.admin.Disconnect(ctx, &routerv1.DisconnectRequest{Session: wrong})
		wantCode(t, err, codes.InvalidArgument, "session")
	}
	_, err = w.admin.Disconnect(ctx, &routerv1.DisconnectRequest{User: "a", CloseCode: 1000})
	wantCode(t, err, codes.InvalidArgument, "4000")
}

func TestSettingsAreCheckedBeforeTheyStand(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	if _, err := w.admin.PutSettings(ctx, &routerv1.PutSettingsRequest{Yaml: "drain: {notice: 1s}"}); err != nil {
		t.Fatal(err)
	}
	_, err := w.admin.PutSettings(ctx, &routerv1.PutSettingsRequest{Yaml: "wrong: 1"})
	wantCode(t, err, codes.InvalidArgument, "wrong")
	got, err := w.admin.GetSettings(ctx, &routerv1.GetSettingsRequest{})
	if err != nil || got.Yaml != "drain: {notice: 1s}" || got.ChangedMs == 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// A router without etcd says so; it does not pretend.
func TestARouterWithoutControlSaysSo(t *testing.T) {
	_, admin := startService(t, nil, Deps{Members: &fakeMembers{}})
	ctx := testContext(t)
	_, err := admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = admin.Revoke(ctx, &routerv1.RevokeRequest{User: "a"})
	wantCode(t, err, codes.FailedPrecondition)
}
