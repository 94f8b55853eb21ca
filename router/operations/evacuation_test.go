package operations

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// hookServer remembers the steps it was told; it fails the first tries of each.
type hookServer struct {
	*httptest.Server
	mu    sync.Mutex // guards below
	fails int
	tries map[string]int
	told  []string
}

func newHookServer(t *testing.T, fails int) *hookServer {
	h := &hookServer{fails: fails, tries: make(map[string]int)}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body hookBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tries[body.Step]++; h.tries[body.Step] <= h.fails {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	h.told = append(h.told, body.Step)
}

func (h *hookServer) steps() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.told)
}

func evacuable(w *world) {
	w.set(&presence.Figure{Id: "e1", Region: "eu", Conns: 600, Critical: 60},
		&presence.Figure{Id: "e2", Region: "eu", Conns: 400},
		&presence.Figure{Id: "u1", Region: "us", Conns: 10, Headroom: 5_000, MovedPerSecond: 500})
}

func TestAnEvacuationIsCheckedToldHeldAndReturned(t *testing.T) {
	w := newWorld(t)
	evacuable(w)
	hook := newHookServer(t, 2)
	ctx := testContext(t)
	begun, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", WindowMs: 10_000, HookUrls: []string{hook.URL}})
	if err != nil || !begun.Fits || begun.Conns != 1_000 || begun.NeededPerSecond != 100 || begun.Headroom != 4_000 || begun.Reserved != 100 {
		t.Fatalf("%v, %v", begun, err)
	}
	if got := hook.steps(); !slices.Equal(got, []string{"before"}) {
		t.Errorf("before it began, %v were called", got)
	}
	_, err = w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu"})
	wantCode(t, err, codes.FailedPrecondition, "running there")

	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e1", Total: 600, Moved: 200, Remaining: 400, AtMs: 1})
	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e2", Total: 400, Moved: 100, Remaining: 300, AtMs: 1})
	eventually(t, "a quarter is told", func() bool { return slices.Contains(hook.steps(), "quarter") })
	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e1", Total: 600, Moved: 600, AtMs: 2, Ended: true})
	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e2", Total: 400, Moved: 390, Closed: 1, Remaining: 9, AtMs: 2, Ended: true})
	eventually(t, "the region is held", func() bool {
		return w.agree.Operation(begun.Operation).State == gatewayv1.OperationState_OPERATION_STATE_HELD
	})
	if op := w.agree.Operation(begun.Operation); !strings.Contains(op.Message, "990 of 1000 clients moved") || !strings.Contains(op.Message, "9 had no room elsewhere and stay") || len(op.Progress) != 2 {
		t.Errorf("the report is %v", op)
	}
	eventually(t, "the end is told", func() bool { return slices.Contains(hook.steps(), "done") })
	if _, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", Back: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the return is told", func() bool { return slices.Contains(hook.steps(), "returned") })
	if got := hook.steps(); !slices.Equal(got, []string{"before", "quarter", "half", "done", "returned"}) {
		t.Errorf("the hook was called for %v", got)
	}
	eventually(t, "the calls are written down", func() bool { return len(w.agree.Operation(begun.Operation).Hooks) == 5 })
	list, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil || list.Operations[0].State != "done" || !slices.Contains(list.Operations[0].Hooks, "half: ok") {
		t.Errorf("listed %v, %v", list, err)
	}
	_, err = w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", Back: true})
	wantCode(t, err, codes.FailedPrecondition)
}

func TestAnEvacuationThatDoesNotFitIsRefusedWithItsNumbers(t *testing.T) {
	w := newWorld(t,
		&presence.Figure{Id: "e1", Region: "eu", Conns: 6_000},
		&presence.Figure{Id: "u1", Region: "us", Headroom: 5_000, MovedPerSecond: 500})
	ctx := testContext(t)
	check, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", DryRun: true})
	if err != nil || check.Fits || check.Headroom != 4_000 {
		t.Errorf("the dry run says %v, %v", check, err)
	}
	_, err = w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu"})
	wantCode(t, err, codes.FailedPrecondition, "6000 clients do not fit")
	if details := status.Convert(err).Details(); len(details) != 1 || details[0].(*routerv1.EvacuateResponse).Conns != 6_000 {
		t.Errorf("the details are %v", details)
	}
	_, err = w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "mars"})
	wantCode(t, err, codes.NotFound)
	for _, bad := range []string{"ftp://a/b", "http://user:secret@a/b", "x", "http://a/" + strings.Repeat("x", 2_048)} {
		_, err = w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", HookUrls: []string{bad}})
		wantCode(t, err, codes.InvalidArgument)
		if strings.Contains(err.Error(), "secret") {
			t.Error("the error repeats a password")
		}
	}
	forced, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", Force: true})
	if err != nil || !w.agree.Operation(forced.Operation).Forced {
		t.Errorf("forced: %v, %v", forced, err)
	}
	if _, err := w.admin.AbortOperation(ctx, &routerv1.AbortOperationRequest{Operation: forced.Operation}); err != nil {
		t.Error(err)
	}
}

// Clients of an edge that left in the middle of an evacuation are not told as staying.
func TestAnEvacuationOutlivesAnEdgeThatLeaves(t *testing.T) {
	w := newWorld(t)
	evacuable(w)
	ctx := testContext(t)
	begun, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: "eu", WindowMs: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	err = w.agree.PutOperation(ctx, &gatewayv1.Operation{Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "e2", Incarnation: 7, Cause: "signal"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drain is known", func() bool { return len(w.agree.Operations()) == 2 })
	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e2", Total: 400, Moved: 100, Remaining: 300, AtMs: 2, Ended: true})
	w.tell(&gatewayv1.Progress{Operation: begun.Operation, Edge: "e1", Total: 600, Moved: 600, AtMs: 2, Ended: true})
	eventually(t, "the region is held", func() bool {
		return w.agree.Operation(begun.Operation).State == gatewayv1.OperationState_OPERATION_STATE_HELD
	})
	if got := w.agree.Operation(begun.Operation).Message; !strings.HasSuffix(got, "0 stragglers; 300 were at edges that left or died") {
		t.Error(got)
	}
}

// A router that has just started does not take silence for an empty region.
func TestAnEvacuationWaitsForFigures(t *testing.T) {
	w := newWorld(t)
	evacuable(w)
	w.members.mu.Lock()
	delete(w.members.figures, presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: "e2"})
	w.members.mu.Unlock()
	_, err := w.admin.Evacuate(testContext(t), &routerv1.EvacuateRequest{Region: "eu"})
	wantCode(t, err, codes.FailedPrecondition, "nothing has been heard yet of 1 of its 2 edges")
}

// Clients go to other regions before any is closed, and the plan says so.
func TestADrainOfARegionsLastEdgeGoesToOtherRegions(t *testing.T) {
	w := newWorld(t,
		&presence.Figure{Id: "e1", Region: "eu", Conns: 900},
		&presence.Figure{Id: "e2", Region: "eu", Headroom: 100, MovedPerSecond: 500, State: gatewayv1.State_STATE_DRAINING},
		&presence.Figure{Id: "u1", Region: "us", Headroom: 2_000, MovedPerSecond: 500})
	plan, err := w.admin.DrainNode(testContext(t), &routerv1.DrainNodeRequest{Node: "e1", DryRun: true})
	if err != nil || plan.Message != "900 clients go to other regions, which have room for 1600 and take 500 a second" {
		t.Errorf("%v, %v", plan, err)
	}
}

func TestAHookIsTriedFourTimesAndNeverRedirected(t *testing.T) {
	secret := newHookServer(t, 0)
	var tries int
	redirect := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		tries++
		http.Redirect(rw, r, secret.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(redirect.Close)
	h := newHooks(time.Now)
	h.pause = time.Millisecond
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	op := &gatewayv1.Operation{HookUrls: []string{redirect.URL + "?key=abc", gone.URL + "?key=abc"}}
	calls := h.call(t.Context(), op, stepHalf, nil)
	if tries != 4 || len(secret.steps()) != 0 || calls[0].Outcome != "failed after 4 tries: answered 307" {
		t.Errorf("%d tries, %v", tries, calls)
	}
	if !strings.HasPrefix(calls[1].Outcome, "failed after 4 tries: ") || strings.Contains(calls[1].Outcome, "abc") {
		t.Errorf("%v", calls[1])
	}
	h.client.CloseIdleConnections()
}

// Without its first hook nothing begins, unless it is forced.
func TestAFirstHookThatFailsStopsAnEvacuation(t *testing.T) {
	w := newWorld(t)
	evacuable(w)
	hook := newHookServer(t, 99)
	_, err := w.admin.Evacuate(testContext(t), &routerv1.EvacuateRequest{Region: "eu", HookUrls: []string{hook.URL}})
	wantCode(t, err, codes.FailedPrecondition, "nothing was begun")
	if len(w.agree.Operations()) != 0 {
		t.Error("it began")
	}
}

// The router that supervises an evacuation dies: the next one finds in the record
// what was done.
func TestAnyRouterGoesOnWithAnEvacuation(t *testing.T) {
	hook := newHookServer(t, 0)
	op := &gatewayv1.Operation{
		Id: "o", Kind: gatewayv1.OperationKind_OPERATION_KIND_EVACUATE, HookUrls: []string{hook.URL}, State: gatewayv1.OperationState_OPERATION_STATE_RUNNING,
		Hooks: []*gatewayv1.HookCall{{Step: stepBefore}, {Step: stepQuarter}},
	}
	figures := []*gatewayv1.Progress{{Total: 100, Remaining: 50}}
	if got := dueStep(op, figures); got != stepHalf {
		t.Errorf("due is %q", got)
	}
	op.Hooks = append(op.Hooks, &gatewayv1.HookCall{Step: stepHalf, Outcome: "failed"})
	if got := dueStep(op, figures); got != "" {
		t.Errorf("due is %q", got)
	}
	op.State = gatewayv1.OperationState_OPERATION_STATE_ABORTED
	if got := dueStep(op, figures); got != stepAborted {
		t.Errorf("due is %q", got)
	}
}
