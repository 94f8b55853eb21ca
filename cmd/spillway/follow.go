package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

const (
	// followRetry is the pause before a router is asked again that was away.
	followRetry = time.Second
	// lineEvery is the time between two lines about progress where there is no terminal.
	lineEvery = 5 * time.Second
	// settleWait is how long the report of an evacuation waits for regions to settle:
	// that takes five calm seconds at least, and three until they are told.
	settleWait = 20 * time.Second
)

// partlyError ends a command with exit code 3.
type partlyError struct{ text string }

func (e *partlyError) Error() string { return e.text }

// ExitCode is ExitPartial.
func (e *partlyError) ExitCode() int { return run.ExitPartial }

// follower waits for the end of an operation and shows how far it is: a live line on a
// terminal, else a line from time to time, or one JSON object for each change.
type follower struct {
	*remote
	client routerv1.AdminServiceClient
	json   bool
	out    io.Writer

	bar  *progress
	last time.Time // of a line
	seen *routerv1.Operation
	held time.Time // since when all edges of an evacuated region are done
}

// follow returns when the operation has ended or a region is held empty. A router that
// is away is asked again: the operation goes on without it.
func (f *follower) follow(ctx context.Context, id string) error {
	f.bar = newProgress()
	for {
		done, err := f.watch(ctx, id)
		switch {
		case done:
			f.bar.end()
			return f.end()
		case ctx.Err() != nil:
			f.bar.end()
			return fmt.Errorf("operation %s goes on; spillway operations shows it, spillway abort %s stops it", id, id)
		case lasting(err) && (f.seen == nil || status.Code(err) != codes.NotFound):
			f.bar.end()
			return f.plain(err)
		}
		timer := time.NewTimer(followRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// settles is how much longer to wait for the settle time of an evacuation; 0: it is
// there, or will not be waited for.
func (f *follower) settles() time.Duration {
	switch {
	case f.seen.GetState() != "held" || f.seen.GetSettlement().GetSettled():
		return 0
	case f.held.IsZero():
		f.held = time.Now()
	}
	return max(0, settleWait-time.Since(f.held))
}

// lasting says that to ask again is no use.
func lasting(err error) bool {
	switch status.Code(err) {
	case codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented:
		return true
	}
	return false
}

func (f *follower) watch(ctx context.Context, id string) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := time.Duration(math.MaxInt64)
	if !f.held.IsZero() {
		wait = f.settles()
	}
	enough := time.AfterFunc(wait, cancel) // all that is missing may be the settle time
	defer enough.Stop()
	stream, err := f.client.WatchOperation(ctx, &routerv1.WatchOperationRequest{Operation: id})
	if err != nil {
		return false, err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return !f.held.IsZero() && f.settles() == 0, err
		}
		f.seen = r.GetOperation()
		if err := f.show(); err != nil {
			return false, err
		}
		switch left := f.settles(); {
		case f.seen.GetState() == "running":
		case left == 0:
			return true, nil
		default:
			enough.Reset(left)
		}
	}
}

func (f *follower) show() error {
	switch {
	case f.json:
		return json.NewEncoder(f.out).Encode(lineOf(f.seen))
	case f.seen.GetState() == "held" && f.bar.on:
		f.bar.show("%s: empty; waiting for the other regions to settle", where(f.seen))
	case f.seen.GetState() != "running":
	case f.bar.on:
		f.bar.show("%s", progressLine(f.seen))
	case time.Since(f.last) >= lineEvery:
		f.last = time.Now()
		_, err := fmt.Fprintln(f.out, progressLine(f.seen))
		return err
	}
	return nil
}

// end says how it ended.
func (f *follower) end() error {
	text := report(f.seen)
	switch state := f.seen.GetState(); {
	case state == "partly", state == "held" && f.seen.GetStragglers()+f.seen.GetRemaining() > 0:
		return &partlyError{text}
	case state != "done" && state != "held":
		return fmt.Errorf("%s", text)
	case f.json:
		return nil
	}
	_, err := fmt.Fprintln(f.out, text)
	return err
}

// where is what an operation is about.
func where(op *routerv1.Operation) string {
	if op.GetNode() != "" {
		return op.GetNode()
	}
	return "region " + op.GetRegion()
}

// progressLine is one line about a running operation.
func progressLine(op *routerv1.Operation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d to go, %d moved", where(op), op.GetRemaining(), op.GetTotal(), op.GetMoved())
	counts(&b, op)
	if op.GetGrantedPerSecond() > 0 {
		fmt.Fprintf(&b, ", up to %.0f/s", op.GetGrantedPerSecond())
	}
	if op.GetMissing() > 0 {
		fmt.Fprintf(&b, ", no room yet for %d", op.GetMissing())
	}
	if op.GetPlannedMs() > 0 {
		left := time.Until(time.UnixMilli(int64(op.GetStartedMs())).Add(millis(op.GetPlannedMs())))
		fmt.Fprintf(&b, ", about %v left", max(0, left).Round(time.Second))
	}
	for _, text := range messages(op) {
		b.WriteString("; " + text)
	}
	return b.String()
}

// counts adds what is not zero.
func counts(b *strings.Builder, op *routerv1.Operation) {
	for _, c := range []struct {
		n    uint32
		what string
	}{{op.GetClosed(), "closed"}, {op.GetStragglers(), "stragglers closed"}, {op.GetGone(), "left by themselves"}} {
		if c.n > 0 {
			fmt.Fprintf(b, ", %d %s", c.n, c.what)
		}
	}
}

// messages are what the operation and its edges have to say, each once.
func messages(op *routerv1.Operation) []string {
	var all []string
	seen := map[string]bool{"": true}
	for _, text := range append([]string{op.GetMessage()}, edgeMessages(op)...) {
		if !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}

func edgeMessages(op *routerv1.Operation) []string {
	var all []string
	for _, e := range op.GetEdges() {
		all = append(all, e.GetMessage())
	}
	return all
}

// report is one line about an operation that has ended.
func report(op *routerv1.Operation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", where(op), op.GetKind(), op.GetState())
	if op.GetEndedMs() > op.GetStartedMs() {
		fmt.Fprintf(&b, " in %v", millis(op.GetEndedMs()-op.GetStartedMs()).Round(100*time.Millisecond))
	}
	fmt.Fprintf(&b, ": %d of %d moved", op.GetMoved(), op.GetTotal())
	counts(&b, op)
	if m := op.GetSettlement(); m != nil {
		fmt.Fprintf(&b, "; at most %.0f new connections a second", m.GetPeakPerSecond())
		if m.GetSettled() {
			fmt.Fprintf(&b, ", settled in %s", settleTime(m.GetSettleMs()))
		} else {
			b.WriteString(", not settled yet")
		}
	}
	for _, text := range messages(op) {
		b.WriteString("; " + text)
	}
	return b.String()
}

func millis[T uint32 | uint64](ms T) time.Duration { return time.Duration(ms) * time.Millisecond }
