package router

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// living is how many bytes of the heap are in use.
func living() int64 {
	var m runtime.MemStats
	for range 3 { // the first two leave what pools hold
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// While the store hangs, 24 publishers send 64 KiB events by streams as fast as they are
// read, 30 MiB in all: what is over the queue is refused with a time to come back, memory stays
// near the queue, and what needs no store goes on though the queue is full.
func TestAFloodFillsTheQueueAndNoMore(t *testing.T) {
	const queue, each, streams, requests = 4 << 20, 64 << 10, 24, 20
	n := start(t, nil, func(c *Config) {
		c.QueueBytes, c.API.PublishDeadline, c.StoreTimeout = queue, 18*time.Second, 18*time.Second
	})
	n.publish1("chat:first", `1`, "")
	release := n.hang()
	defer release()
	data := `"` + strings.Repeat("x", each) + `"` // one for all that publishers send
	before := living()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var taken, refused int
	for i := range streams {
		wg.Go(func() {
			stream, err := n.pub.PublishStream(testContext(t))
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() { // reads the answers of all requests
				for range requests {
					response, err := stream.Recv()
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					switch r := response.Results[0]; {
					case r.GetPlaced() != nil:
						taken++
					case codes.Code(r.GetFailure().GetCode()) == codes.ResourceExhausted && r.GetFailure().GetRetryAfterMs() > 0:
						refused++
					default:
						t.Errorf("neither stored nor refused with a time: %v", r)
					}
					mu.Unlock()
				}
			})
			for j := range requests {
				request := &routerv1.PublishStreamRequest{Publications: []*routerv1.Publication{event(fmt.Sprint("chat:", i, "-", j%4), data, "")}}
				if err := stream.Send(request); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	most := streams*requests - queue/each
	eventually(t, "what does not fit is refused", func() bool { return n.labelled("spillway_router_publishes_total", "overflow") >= float64(most) })
	grown := living() - before
	t.Logf("%d MiB were sent, the heap grew by %d KiB with a queue of %d", streams*requests*each>>20, grown>>10, queue>>10)
	// the queue, and what a stream and its transport hold
	if bound := int64(queue*3/2 + streams*(128<<10)); grown > bound {
		t.Errorf("the heap has grown by %d KiB, at most %d are allowed", grown>>10, bound>>10)
	}
	for i := range 30 {
		if placed, err := n.publishErr("brief:x", data, ""); err != nil || placed.Offset != uint64(i+1) {
			t.Fatalf("what needs no store: %v, %v", placed, err)
		}
	}
	release()
	wg.Wait()
	if taken == 0 || taken*each > queue || taken+refused != streams*requests {
		t.Errorf("%d were taken, %d refused", taken, refused)
	}
	if events, bytes := n.table.Waiting(); events != 0 || bytes != 0 {
		t.Error("the queue accounts something when empty")
	}
}

// Tails of large events on many channels stay within their budget in memory too, and not only
// by their own count.
func TestTailsStayWithinTheirBytes(t *testing.T) {
	const budget, each, batch, channels = 2 << 20, 16 << 10, 64, 40
	n := start(t, nil, func(c *Config) {
		c.CacheBytes, c.TailAge, c.TailEvents, c.TrimLimit = budget, time.Millisecond, 4, 1<<20
		c.Namespaces["chat"] = namespace.Namespace{HistorySize: 1, Recover: true}
	})
	data := `"` + strings.Repeat("x", each) + `"`
	before := living()
	for i := range 2 * channels {
		request := &routerv1.PublishBatchRequest{}
		for range []int{batch, 1}[i/channels] {
			request.Publications = append(request.Publications, event(fmt.Sprint([]string{"brief:", "chat:"}[i%2], i%channels), data, ""))
		}
		if _, err := n.pub.PublishBatch(testContext(t), request); err != nil {
			t.Fatal(err)
		}
		n.bus.forgetAll()
		if err := n.retention.Round(testContext(t)); err != nil { // the store is memory as well
			t.Fatal(err)
		}
	}
	grown, count := living()-before, int64(n.counter("spillway_router_cache_bytes"))
	t.Logf("%d MiB were published, the tails count %d KiB, the heap grew by %d KiB", channels*batch*each>>20, count>>10, grown>>10)
	if count > budget || count < budget/8 {
		t.Errorf("the tails count %d KiB of %d", count>>10, budget>>10)
	}
	if grown > 2*budget {
		t.Errorf("the heap has grown by %d KiB, the tails may have %d", grown>>10, budget>>10)
	}
}

func (b *recorder) forgetAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.envelopes = nil
}
