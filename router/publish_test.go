package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// Every event is in the store before the bus hears of it.
func TestAckedIsStoredBeforeFanOut(t *testing.T) {
	n := start(t, nil, nil)
	var early atomic.Int64
	n.bus.onPublish = func(e *gatewayv1.Envelope) {
		if len(n.stored(e.Channel)) < int(e.Head) {
			early.Add(1)
		}
	}
	for i := 1; i <= 20; i++ {
		placed := n.publish1("chat:a", fmt.Sprintf(`{"i": %d}`, i), "")
		if placed.Offset != uint64(i) || placed.Repeat {
			t.Fatalf("event %d placed at %v", i, placed)
		}
		if got := n.stored("chat:a"); len(got) != i || string(got[i-1].Data) != fmt.Sprintf(`{"i":%d}`, i) {
			t.Fatalf("after the ack of event %d the store has %d events", i, len(got))
		}
	}
	if early.Load() != 0 {
		t.Errorf("%d envelopes were on the bus before their events were stored", early.Load())
	}
	if got := n.bus.offsets("chat:a"); len(got) != 20 {
		t.Errorf("bus has offsets %v", got)
	}
}

// Two routers over one store both believe that they own everything.
func TestTwoBelieversNeverShareAnOffset(t *testing.T) {
	shared := memory.New(memory.Default())
	a := start(t, shared, nil)
	b := start(t, shared, func(c *Config) { c.ID = "r2" })
	const each = 150
	type ack struct {
		channel string
		offset  uint64
	}
	var mu sync.Mutex
	acked := make(map[ack]string)
	var wg sync.WaitGroup
	for i, n := range []*node{a, b, a, b} {
		wg.Add(1)
		go func() { // one publisher; the test waits for it
			defer wg.Done()
			for j := range each {
				channel, data := fmt.Sprintf("chat:%d", j%3), fmt.Sprintf(`"%d-%d"`, i, j)
				placed, err := n.publishErr(channel, data, "")
				if err != nil {
					continue // refused is fine, twice is not
				}
				mu.Lock()
				if other, taken := acked[ack{channel, placed.Offset}]; taken {
					t.Errorf("%s and %s were both acked at %s/%d", other, data, channel, placed.Offset)
				}
				acked[ack{channel, placed.Offset}] = data
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	total := 0
	for c := range 3 {
		channel := fmt.Sprintf("chat:%d", c)
		for i, e := range a.stored(channel) {
			total++
			if e.Offset != uint64(i+1) {
				t.Fatalf("%s: hole before offset %d", channel, e.Offset)
			}
			if data, ok := acked[ack{channel, e.Offset}]; ok && data != string(e.Data) {
				t.Errorf("%s/%d acked as %s, stored as %s", channel, e.Offset, data, e.Data)
			}
		}
	}
	if total != len(acked) {
		t.Errorf("%d acked, %d stored", len(acked), total)
	}
	if len(acked) < each {
		t.Errorf("only %d of %d were acked", len(acked), 4*each)
	}
}

// A backend repeats a publish with the same key at another router after the
// first one died: the answer names the first event.
func TestKeyRepeatAcrossFailover(t *testing.T) {
	shared := memory.New(memory.Default())
	a := start(t, shared, nil)
	first := a.publish1("chat:a", `1`, "order-7")
	a.publish1("chat:a", `2`, "")
	b := start(t, shared, func(c *Config) { c.ID = "r2" })
	again := b.publish1("chat:a", `1`, "order-7")
	if again.Offset != first.Offset || again.Epoch != first.Epoch || !again.Repeat {
		t.Errorf("repeat was placed at %v, the first at %v", again, first)
	}
	if got := b.publish1("chat:a", `3`, "order-8"); got.Offset != 3 || got.Repeat {
		t.Errorf("a repeat left a hole: next is %v", got)
	}
	if got := len(b.bus.offsets("chat:a")); got != 1 {
		t.Errorf("the repeat was fanned out: %d events on the bus", got)
	}
}

// The same key twice in one request, and by a user and a backend.
func TestKeysWithinOneBatchAndScope(t *testing.T) {
	n := start(t, nil, nil)
	response, err := n.pub.PublishBatch(testContext(t), &routerv1.PublishBatchRequest{Publications: []*routerv1.Publication{
		event("chat:a", `1`, "k"), event("chat:a", `2`, "k"), event("chat:a", `3`, ""), event("chat:b", `4`, "k"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range response.Results {
		got = append(got, fmt.Sprintf("%d %v", r.GetPlaced().GetOffset(), r.GetPlaced().GetRepeat()))
	}
	if want := "1 false,1 true,2 false,1 false"; strings.Join(got, ",") != want {
		t.Errorf("placed %v, want %v", got, want)
	}
	user, err := n.edge.Submit(testContext(t), &gatewayv1.SubmitRequest{Submissions: []*gatewayv1.Submission{
		{Channel: "chat:a", Data: []byte(`5`), Key: "k", From: "ann", ByClient: true},
		{Channel: "chat:a", Data: []byte(`5`), Key: "k", From: "bob", ByClient: true},
	}})
	if err != nil || user.Results[0].Offset != 3 || user.Results[1].Offset != 4 {
		t.Errorf("keys of users are apart from each other and from backends': %v, %v", user, err)
	}
}

// One event that the database does not take fails alone; the others of its
// batch, of its own channel too, are stored without a hole.
func TestRefusedEventFailsAlone(t *testing.T) {
	n := start(t, nil, nil)
	n.store.onAppend(func(_ context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		for _, r := range runs {
			for _, e := range r.Events {
				if strings.Contains(string(e.Data), "poison") {
					return nil, fmt.Errorf("append: %w", &history.RefusedError{Err: errors.New("cannot hold it")})
				}
			}
		}
		return next()
	})
	var in []*routerv1.Publication
	for i := range 60 {
		data := fmt.Sprintf(`"%d"`, i)
		if i == 17 || i == 41 {
			data = `"poison"`
		}
		in = append(in, event(fmt.Sprintf("chat:%d", i%4), data, ""))
	}
	response, err := n.pub.PublishBatch(testContext(t), &routerv1.PublishBatchRequest{Publications: in})
	if err != nil {
		t.Fatal(err)
	}
	stored := 0
	for i, r := range response.Results {
		if bad := i == 17 || i == 41; bad != (r.GetFailure().GetCode() == uint32(codes.InvalidArgument)) {
			t.Errorf("event %d: %v", i, r)
		}
	}
	for c := range 4 {
		events := n.stored(fmt.Sprintf("chat:%d", c))
		stored += len(events)
		for i, e := range events {
			if e.Offset != uint64(i+1) {
				t.Errorf("channel %d has a hole before %d", c, e.Offset)
			}
		}
	}
	if stored != 58 {
		t.Errorf("%d events stored, want 58", stored)
	}
}

func TestStoreAwayAnswersUnavailableAndRecovers(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.RetryFor = 100 * time.Millisecond })
	n.publish1("chat:a", `1`, "")
	n.store.away(true)
	began := time.Now()
	_, err := n.publishErr("chat:a", `2`, "")
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("with the store away: %v", err)
	}
	if took := time.Since(began); took > n.cfg.API.PublishDeadline {
		t.Errorf("the answer took %v", took)
	}
	if retry := detail[*errdetails.RetryInfo](err); retry == nil {
		t.Errorf("no RetryInfo in %v", err)
	}
	if placed := n.publish1("brief:x", `1`, ""); placed.Offset != 1 {
		t.Errorf("a channel without a store must go on: %v", placed)
	}
	e := n.sync()
	if a := e.ask(position("chat:cold", 1, 0)); a.Status != gatewayv1.Status_STATUS_UNAVAILABLE || a.RetryAfterMs == 0 || !a.HasHistory {
		t.Errorf("ask with the store away: %v", a)
	}
	n.store.away(false)
	eventually(t, "publishing works again", func() bool {
		_, err := n.publishErr("chat:a", `3`, "")
		return err == nil
	})
	if a := e.ask(&gatewayv1.Ask{Channel: "chat:cold"}); a.Status != gatewayv1.Status_STATUS_OK || a.Epoch == 0 {
		t.Errorf("ask after the return: %v", a)
	}
}

// A store that hangs: callers get their answer at the deadline.
func TestStoreThatHangsIsAnsweredWithinDeadline(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.API.PublishDeadline, c.StoreTimeout = 300*time.Millisecond, 700*time.Millisecond })
	n.publish1("chat:a", `1`, "")
	n.store.onAppend(func(ctx context.Context, _ []history.Run, _ func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if _, err := n.publishErr("chat:a", `2`, ""); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "outcome unknown") {
		t.Errorf("a publish in a hanging commit: %v", err)
	}
	if _, err := n.publishErr("chat:b", `2`, ""); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not stored") {
		t.Errorf("a publish behind a hanging commit: %v", err)
	}
	n.store.onAppend(nil)
	eventually(t, "publishing works again", func() bool {
		_, err := n.publishErr("chat:b", `3`, "")
		return err == nil
	})
}

// The commit happened but its answer was lost: the publish is not stored twice,
// is acked with its own offset and fanned out, with a key or without.
func TestUnknownOutcomeIsReloaded(t *testing.T) {
	for _, key := range []string{"", "k"} {
		t.Run("key="+key, func(t *testing.T) {
			n := start(t, nil, nil)
			n.publish1("chat:a", `1`, "")
			var once atomic.Bool
			n.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
				outcomes, err := next()
				if once.CompareAndSwap(false, true) {
					return nil, errAway
				}
				return outcomes, err
			})
			if placed := n.publish1("chat:a", `2`, key); placed.Offset != 2 {
				t.Errorf("placed at %v", placed)
			}
			if placed := n.publish1("chat:a", `3`, ""); placed.Offset != 3 {
				t.Errorf("the next placed at %v", placed)
			}
			if got := fmt.Sprint(n.bus.offsets("chat:a")); got != "[1 2 3]" {
				t.Errorf("on the bus: %v", got)
			}
		})
	}
}

// The commit failed before anything was stored, and the transaction that was
// given up lands after all, in the middle of the second try.
func TestLateCommitIsNotStoredTwice(t *testing.T) {
	n := start(t, nil, nil)
	n.publish1("chat:a", `1`, "")
	var calls atomic.Int64
	var zombie []history.Run
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		switch calls.Add(1) {
		case 1:
			zombie = append(zombie, runs...)
			return nil, errAway
		case 2:
			if _, err := n.store.Store.Append(ctx, zombie); err != nil {
				return nil, err
			}
		}
		return next()
	})
	if placed := n.publish1("chat:a", `2`, ""); placed.Offset != 2 {
		t.Errorf("placed at %v", placed)
	}
	if got := n.stored("chat:a"); len(got) != 2 {
		t.Errorf("%d events are stored, want 2", len(got))
	}
}

func TestPublishOverflowIsRefused(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.QueueEvents = 10 })
	n.publish1("chat:a", `1`, "")
	release := make(chan struct{})
	entered := make(chan struct{}, 100)
	n.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		entered <- struct{}{}
		<-release
		return next()
	})
	results := make(chan error, 40)
	for range 40 {
		go func() { // ends with its publish; counted below
			_, err := n.publishErr("chat:a", `2`, "")
			results <- err
		}()
	}
	<-entered
	refused := 0
	for range 30 { // 10 fit, 30 are answered at once
		if err := <-results; status.Code(err) == codes.ResourceExhausted && detail[*errdetails.RetryInfo](err) != nil {
			refused++
		}
	}
	close(release)
	for range 10 {
		if err := <-results; err != nil {
			t.Errorf("a publish that was taken failed: %v", err)
		}
	}
	if refused != 30 {
		t.Errorf("%d refused with RetryInfo, want 30", refused)
	}
	if events, bytes := n.table.Waiting(); events != 0 || bytes != 0 {
		t.Errorf("the queue accounts %d events, %d bytes when empty", events, bytes)
	}
}

// Callers that gave up cause no work.
func TestAbandonedPublishIsNotStored(t *testing.T) {
	n := start(t, nil, nil)
	n.publish1("chat:a", `1`, "")
	release := make(chan struct{})
	entered := make(chan struct{}, 100)
	n.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		entered <- struct{}{}
		<-release
		return next()
	})
	first := make(chan error, 1)
	go func() { // ends with its publish
		_, err := n.publishErr("chat:a", `2`, "")
		first <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.pub.Publish(ctx, &routerv1.PublishRequest{Publication: event("chat:a", `"late"`, "")}); err == nil {
		t.Error("a publish behind a blocked commit was acked")
	}
	eventually(t, "the server saw the caller go", func() bool {
		return n.state("chat:a").Abandoned == 1
	})
	close(release)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	n.publish1("chat:a", `3`, "")
	if got := n.stored("chat:a"); len(got) != 3 {
		t.Errorf("%d events stored, want 3: the abandoned one is in", len(got))
	}
}

func TestOffsetsEndAtTheLastExactNumber(t *testing.T) {
	store := memory.New(memory.Default())
	n := start(t, store, nil)
	n.publish1("chat:a", `1`, "")
	epoch := n.state("chat:a").Epoch
	last := &gatewayv1.HandedChannel{Channel: "chat:a", Epoch: epoch, Head: wire.MaxOffset, Stored: true, Settled: true}
	n.table.Accept(&machine.Handed{Meta: last}, n.namespaces.Of("chat:a"))
	if _, err := n.publishErr("chat:a", `2`, ""); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("past the last offset: %v", err)
	}
	e := n.sync()
	if a := e.ask(position("chat:b", 1, 1<<63)); a.Status != gatewayv1.Status_STATUS_OK || a.Recovered {
		t.Errorf("a position past every offset: %v", a)
	}
}

func TestBadPublishesAreNamed(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.OpenNamespaces = false })
	big := strings.Repeat("x", n.cfg.API.MaxEventBytes)
	for name, c := range map[string]struct {
		in    *routerv1.Publication
		code  codes.Code
		field string
	}{
		"no publication":    {nil, codes.InvalidArgument, "publication"},
		"no channel":        {event("", `1`, ""), codes.InvalidArgument, "channel"},
		"control character": {event("closed:a\n", `1`, ""), codes.InvalidArgument, "channel"},
		"long channel":      {event("closed:"+strings.Repeat("a", 250), `1`, ""), codes.InvalidArgument, "channel"},
		"no data":           {&routerv1.Publication{Channel: "closed:a"}, codes.InvalidArgument, "data"},
		"not JSON":          {event("closed:a", `{`, ""), codes.InvalidArgument, "data"},
		"long key":          {event("closed:a", `1`, strings.Repeat("k", 256)), codes.InvalidArgument, "key"},
		"too large":         {event("closed:a", `"`+big+`"`, ""), codes.InvalidArgument, "data"},
		"unknown namespace": {event("nope:a", `1`, ""), codes.NotFound, ""},
		"bare name":         {event("news", `1`, ""), codes.NotFound, ""},
	} {
		_, err := n.pub.Publish(testContext(t), &routerv1.PublishRequest{Publication: c.in})
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
		bad := detail[*errdetails.BadRequest](err)
		if c.field != "" && (bad == nil || bad.FieldViolations[0].Field != c.field) {
			t.Errorf("%s: details %v, want a violation of %q", name, bad, c.field)
		}
	}
	if placed := n.publish1("closed:a", " { \"n\" : 9007199254740993, \"e\": \"\\u00e9\" } ", ""); placed.Offset != 1 {
		t.Errorf("placed %v", placed)
	}
	if got := string(n.stored("closed:a")[0].Data); got != `{"n":9007199254740993,"e":"\u00e9"}` {
		t.Errorf("stored %s", got)
	}
}

func TestClientsPublishWhereTheNamespaceSays(t *testing.T) {
	n := start(t, nil, nil)
	sub := func(channel string, openOnly bool) *gatewayv1.Submission {
		return &gatewayv1.Submission{Channel: channel, Data: []byte(`1`), From: "ann", ByClient: true, OpenOnly: openOnly}
	}
	response, err := n.edge.Submit(testContext(t), &gatewayv1.SubmitRequest{Submissions: []*gatewayv1.Submission{
		sub("closed:a", false), sub("user:ann", false), sub("brief:a", true), sub("chat:a", true),
		{Channel: "closed:a", Data: []byte(`1`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []codes.Code{codes.PermissionDenied, codes.PermissionDenied, codes.OK, codes.OK, codes.OK}
	for i, r := range response.Results {
		if codes.Code(r.Code) != want[i] {
			t.Errorf("submission %d: %v, want %v", i, r, want[i])
		}
	}
}

func TestBroadcastAndStreamKeepOrder(t *testing.T) {
	n := start(t, nil, nil)
	channels := []string{"chat:1", "chat:2", "chat:1", "bad\x00"}
	response, err := n.pub.Broadcast(testContext(t), &routerv1.BroadcastRequest{Channels: channels, Publication: event("", ` { "a" : 1 } `, "")})
	if err != nil {
		t.Fatal(err)
	}
	if r := response.Results; r[0].GetPlaced().GetOffset() != 1 || r[2].GetPlaced().GetOffset() != 2 || r[3].GetFailure() == nil {
		t.Errorf("broadcast: %v", r)
	}
	if got := n.stored("chat:2"); len(got) != 1 || string(got[0].Data) != `{"a":1}` || got[0].Binary {
		t.Errorf("broadcast stored %+v", got)
	}
	stream, err := n.pub.PublishStream(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	const requests = 200 // more than may be unanswered
	go func() {          // ends when all is sent
		for i := range requests {
			in := []*routerv1.Publication{event("chat:s", fmt.Sprint(2*i), ""), event("chat:s", fmt.Sprint(2*i+1), "")}
			if stream.Send(&routerv1.PublishStreamRequest{Publications: in}) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for i := range requests {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for j, r := range response.Results {
			if want := uint64(2*i + j + 1); r.GetPlaced().GetOffset() != want {
				t.Fatalf("request %d event %d: %v, want offset %d", i, j, r, want)
			}
		}
	}
	if _, err := stream.Recv(); err == nil || err.Error() != "EOF" {
		t.Errorf("the stream ended with %v", err)
	}
	for i, e := range n.stored("chat:s") {
		if string(e.Data) != fmt.Sprint(i) {
			t.Fatalf("stored %s at %d", e.Data, e.Offset)
		}
	}
}

// detail is the first detail of type T in a gRPC error.
func detail[T any](err error) (found T) {
	for _, d := range status.Convert(err).Details() {
		if t, ok := d.(T); ok {
			return t
		}
	}
	return found
}

// The promises hold over the store that embeds, as over memory.
func TestSQLiteKeepsWhatWasAcked(t *testing.T) {
	store := stores(t)["sqlite"]
	// Both believe that the channel is theirs, as for a while after a change of owner.
	a := start(t, store, func(c *Config) { c.OwnerRecheck = time.Hour })
	b := start(t, store, func(c *Config) { c.ID, c.OwnerRecheck = "r2", time.Hour })
	var wg sync.WaitGroup
	var acked atomic.Int64
	for i := range 4 {
		n := []*node{a, b}[i%2]
		wg.Go(func() {
			for j := range 25 {
				key := ""
				if j%3 == 0 {
					key = fmt.Sprint(j) // shared by all four
				}
				placed, err := n.publishErr("chat:a", fmt.Sprint(j), key)
				if err == nil && !placed.Repeat {
					acked.Add(1)
				}
			}
		})
	}
	wg.Wait()
	events := a.stored("chat:a")
	for i, e := range events {
		if e.Offset != uint64(i+1) {
			t.Fatalf("a hole before %d", e.Offset)
		}
	}
	if int64(len(events)) != acked.Load() {
		t.Errorf("%d acked, %d stored", acked.Load(), len(events))
	}
	// Two owners that fight for the channel may still be settling a commit: then the
	// answer is "not now", which is to be asked again.
	asker := a.sync()
	var got *gatewayv1.Answer
	eventually(t, "an answer", func() bool {
		got = asker.ask(position("chat:a", 1, uint64(len(events)-2)))
		return got.Status != gatewayv1.Status_STATUS_UNAVAILABLE
	})
	if !got.Recovered || len(got.Events) != 2 {
		t.Errorf("catching up: %v", got)
	}
}

// A list without an event, or without a channel, is a mistake of the backend that is told: not
// a success with nothing in it.
func TestNothingToPublishIsRefused(t *testing.T) {
	n := start(t, nil, nil)
	_, err := n.pub.PublishBatch(testContext(t), &routerv1.PublishBatchRequest{})
	if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "publications: ") {
		t.Errorf("a batch of nothing: %v", err)
	}
	_, err = n.pub.Broadcast(testContext(t), &routerv1.BroadcastRequest{Publication: event("", `1`, "")})
	if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "channels: ") {
		t.Errorf("a broadcast to nobody: %v", err)
	}
}

// An ack says what its event has survived.
func TestAnAckNamesItsDurability(t *testing.T) {
	n := start(t, nil, nil)
	if committed := n.publish1("chat:a", `1`, ""); committed.Durability != routerv1.Durability_DURABILITY_COMMITTED {
		t.Errorf("placed %v", committed)
	}
	if none := n.publish1("brief:a", `1`, ""); none.Durability != routerv1.Durability_DURABILITY_NONE {
		t.Errorf("placed %v", none)
	}
}
