package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

// fakeAdmin answers WatchOperation with one script after the other.
type fakeAdmin struct {
	routerv1.AdminServiceClient
	scripts [][]any // of *routerv1.Operation, then an error
	asked   int
}

func (f *fakeAdmin) WatchOperation(ctx context.Context, _ *routerv1.WatchOperationRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[routerv1.WatchOperationResponse], error) {
	s := &fakeStream{ctx: ctx}
	if f.asked < len(f.scripts) {
		s.script = f.scripts[f.asked]
	}
	f.asked++
	return s, nil
}

type fakeStream struct {
	grpc.ClientStream
	ctx    context.Context
	script []any
}

func (s *fakeStream) Recv() (*routerv1.WatchOperationResponse, error) {
	if len(s.script) == 0 {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	next := s.script[0]
	s.script = s.script[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return &routerv1.WatchOperationResponse{Operation: next.(*routerv1.Operation)}, nil
}

func operation(state string, stragglers uint32) *routerv1.Operation {
	return &routerv1.Operation{
		Id: "o1", Kind: "drain", State: state, Node: "edge-1", StartedMs: 1_000, EndedMs: 13_300,
		Total: 100, Moved: 90 - stragglers, Stragglers: stragglers, Gone: 10, Message: "why",
	}
}

// A command that waits ends as the operation does, through routers that come and go.
func TestWaitingEndsAsTheOperationDoes(t *testing.T) {
	away, none := status.Error(codes.Unavailable, "the router is stopping"), status.Error(codes.NotFound, "there is none")
	running, notEmpty := operation("running", 0), operation("held", 0)
	notEmpty.Remaining = 4
	for _, c := range []struct {
		name    string
		scripts [][]any
		code    int
		words   string
	}{
		{"done", [][]any{{running, operation("done", 0)}}, 0, "edge-1: drain done in 12.3s: 90 of 100 moved, 10 left by themselves; why"},
		{"partly", [][]any{{running, operation("partly", 3)}}, 3, "3 stragglers closed"},
		{"failed", [][]any{{operation("failed", 0)}}, 1, "drain failed"},
		{"aborted", [][]any{{operation("aborted", 0)}}, 1, "drain aborted"},
		{"held", [][]any{{operation("held", 0)}}, 0, "drain held"},
		{"held, not empty", [][]any{{notEmpty}}, 3, "drain held"},
		{"a router stops", [][]any{{running, away}, {away}, {none}, {running, operation("done", 0)}}, 0, "drain done"},
		{"unknown", [][]any{{none}}, 1, "there is none"},
		{"forbidden", [][]any{{running, status.Error(codes.PermissionDenied, "no right")}}, 1, "no right"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				f := follower{remote: &remote{}, client: &fakeAdmin{scripts: c.scripts}, out: &out}
				err := f.follow(t.Context(), "o1")
				text := out.String()
				if err != nil {
					text += err.Error()
				}
				if run.Code(err) != c.code || !strings.Contains(text, c.words) {
					t.Errorf("code %d, %s", run.Code(err), text)
				}
			})
		})
	}
}

// The report of an evacuation tells the peak rate and the settle time; a region that
// does not settle is not waited for.
func TestAnEvacuationReportsHowItSettled(t *testing.T) {
	held := func(m *routerv1.Settlement) *routerv1.Operation {
		op := operation("held", 0)
		op.Kind, op.Node, op.Region, op.Settlement = "evacuate", "", "eu", m
		return op
	}
	restless := held(&routerv1.Settlement{PeakPerSecond: 130, Displaced: 100, Back: 90})
	calm := held(&routerv1.Settlement{PeakPerSecond: 135, Displaced: 100, Back: 90, Settled: true, SettleMs: 20_400})
	away := status.Error(codes.Unavailable, "the router is stopping")
	for name, c := range map[string]struct {
		scripts [][]any
		words   string
		waits   time.Duration
	}{
		"settles":         {[][]any{{operation("running", 0), held(nil), restless, calm}}, "region eu: evacuate held in 12.3s: 90 of 100 moved, 10 left by themselves; at most 135 new connections a second, settled in 20.4s", 0},
		"does not settle": {[][]any{{restless}}, "at most 130 new connections a second, not settled yet", settleWait},
		"a router stops":  {[][]any{{restless, away}, {restless, calm}}, "settled in 20.4s", followRetry},
		"no router":       {[][]any{{restless, away}}, "not settled yet", settleWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				f := follower{remote: &remote{}, client: &fakeAdmin{scripts: c.scripts}, out: &out}
				began := time.Now()
				if err := f.follow(t.Context(), "o1"); err != nil || !strings.Contains(out.String(), c.words) {
					t.Errorf("%v, %s", err, out.String())
				}
				if took := time.Since(began); took < c.waits || took > c.waits+followRetry {
					t.Errorf("it took %v, want %v", took, c.waits)
				}
			})
		})
	}
}

func TestWaitingThatIsCutShortSaysThatItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f := follower{remote: &remote{}, client: &fakeAdmin{scripts: [][]any{{operation("running", 0)}}}, out: io.Discard, json: true}
		if err := f.follow(ctx, "o1"); run.Code(err) != 1 || !strings.Contains(err.Error(), "spillway abort o1") {
			t.Errorf("%v", err)
		}
	})
}

func TestProgressIsOneLine(t *testing.T) {
	op := operation("running", 0)
	op.Remaining, op.Closed, op.Missing, op.GrantedPerSecond = 60, 5, 7, 450
	op.Edges = []*routerv1.EdgeProgress{{Message: "why"}, {Message: "no room"}}
	want := "edge-1: 60 of 100 to go, 90 moved, 5 closed, 10 left by themselves, up to 450/s, no room yet for 7; why; no room"
	if got := progressLine(op); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAnEvacuationAsksOnATerminalOnly(t *testing.T) {
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c := evacuateCmd{Region: "eu"}
	if err := c.ask(in, io.Discard); run.Code(err) != run.ExitUsage {
		t.Errorf("%v", err)
	}
	c.Yes = true
	if err := c.ask(in, io.Discard); err != nil {
		t.Errorf("%v", err)
	}
}

func TestOperatorsCommands(t *testing.T) {
	d := startDev(t, t.TempDir())
	defer d.interrupt(t)
	for until := time.Now().Add(20 * time.Second); ; {
		// Figures of load come once a second.
		if _, _, code := spillway(t, "", "evacuate", "--region", "dev", "--dry-run", "--server", d.server); code == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("no load figure of the edge is heard")
		}
	}
	for _, c := range []struct {
		stdin string
		args  []string
		code  int
		out   string // in standard output
		errs  string // in standard error
	}{
		{"", []string{"drain", "edge-9"}, 1, "", "not a member"},
		{"", []string{"drain", "router-1"}, 2, "", "is a router"},
		{"", []string{"drain", "edge-1", "--deadline", "-1s"}, 2, "", "--deadline"},
		{"", []string{"drain", "edge-1", "--dry-run", "--json"}, 0, `{"node":"edge-1","conns":0`, ""},
		{"", []string{"undrain", "edge-1"}, 1, "", "no drain"},
		{"", []string{"evacuate", "--region", "mars", "--yes"}, 1, "", "no edges"},
		{"", []string{"evacuate", "--region", "dev", "--dry-run"}, 0, "it fits", ""},
		{"", []string{"evacuate", "--region", "dev"}, 2, "", "--yes"},
		{"", []string{"evacuate", "--region", "dev", "--return"}, 1, "", "not evacuated"},
		{"", []string{"operations"}, 0, "OPERATION", ""},
		{"", []string{"abort", "x"}, 1, "", "no such operation"},
		{"admission: {fresh_per_second: 50}\n", []string{"settings", "put", "-"}, 0, "", ""},
		{"", []string{"settings", "get"}, 0, "admission: {fresh_per_second: 50}\n", ""},
		{"", []string{"settings", "put", "/nowhere"}, 2, "", "no such file"},
		{"", []string{"revoke", "ann"}, 0, "all tokens of user ann that were issued before 20", ""},
		{"", []string{"revoke", "ann", "--json"}, 0, `{"user":"ann","issued_before_ms":1`, ""},
		{"", []string{"revoke", "ann", "--token", "t"}, 0, "token t of user ann is revoked\n", ""},
		{"", []string{"revoke", "ann", "--before", "2099-01-01T00:00:00Z"}, 2, "", "ahead"},
		{"", []string{"revoke", "ann", "--token", "t", "--before", "2026-01-01T00:00:00Z"}, 2, "", "exclude"},
		{"", []string{"disconnect"}, 2, "", "name a user"},
		{"", []string{"disconnect", "ann", "--code", "1000"}, 2, "", "4000"},
		{"", []string{"disconnect", "--session", "s"}, 2, "", "22 characters"},
		{"", []string{"disconnect", "--session", "Hs16G_31KxXsTVh1RcIDZg"}, 0, "session Hs16G_31KxXsTVh1RcIDZg with 4000\n", ""},
		{"", []string{"disconnect", "ann", "--json"}, 0, `{"user":"ann","code":4000}` + "\n", ""},
	} {
		out, errs, code := spillway(t, c.stdin, append(c.args, "--server", d.server)...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
			t.Errorf("%v: %d %s%s", c.args, code, out, errs)
		}
	}
}
