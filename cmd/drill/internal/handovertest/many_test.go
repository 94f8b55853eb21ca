package handovertest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

var many = flag.Int("channels", 3000, "channels of the test in which a router leaves with half of them")

// place is where an event was put.
type place struct {
	epoch  string
	offset uint64
}

// crowd is many channels, and where the last event of each is.
type crowd struct {
	t    *testing.T
	pub  routerv1.PublisherServiceClient
	name []string
	mu   []sync.Mutex // one channel, one publish at a time
	last []place      // guarded by mu of the channel
}

func newCrowd(t *testing.T, c *cluster.Cluster, through *cluster.Node, n int) *crowd {
	conn, err := c.Dial(through)
	if err != nil {
		t.Fatal(err)
	}
	w := &crowd{t: t, pub: routerv1.NewPublisherServiceClient(conn), mu: make([]sync.Mutex, n), last: make([]place, n)}
	for i := range n {
		w.name = append(w.name, fmt.Sprintf("%s:%d", slices.Sorted(mapKeys(kinds))[i%len(kinds)], i))
	}
	return w
}

func mapKeys(m map[string]namespace.Durability) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func event(channel string) *routerv1.Publication {
	return &routerv1.Publication{Channel: channel, Data: &routerv1.Publication_Json{Json: `"` + strings.Repeat("x", 200) + `"`}}
}

// all publishes one event on each channel, which must follow the one before.
func (w *crowd) all() {
	w.t.Helper()
	const part = 500
	for from := 0; from < len(w.name); from += part {
		to := min(from+part, len(w.name))
		request := &routerv1.PublishBatchRequest{}
		for i := from; i < to; i++ {
			request.Publications = append(request.Publications, event(w.name[i]))
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		response, err := w.pub.PublishBatch(ctx, request)
		cancel()
		if err != nil {
			w.t.Fatal(err)
		}
		for i, r := range response.Results {
			w.placed(from+i, r.GetPlaced(), r.GetFailure())
		}
	}
}

func (w *crowd) placed(i int, p *routerv1.Placed, why any) {
	last := &w.last[i]
	switch {
	case p == nil:
		w.t.Errorf("%s: %v", w.name[i], why)
	case last.offset > 0 && (p.Epoch != last.epoch || p.Offset != last.offset+1):
		w.t.Errorf("%s: %s %d after %s %d", w.name[i], p.Epoch, p.Offset, last.epoch, last.offset)
	}
	if p != nil {
		*last = place{p.Epoch, p.Offset}
	}
}

// load publishes on one channel after the other, until ctx ends, and returns how long each
// publish took.
func (w *crowd) load(ctx context.Context) []time.Duration {
	var took []time.Duration
	for ctx.Err() == nil {
		i := rand.IntN(len(w.name))
		w.mu[i].Lock()
		began := time.Now()
		call, cancel := context.WithTimeout(context.Background(), patience)
		r, err := w.pub.Publish(call, &routerv1.PublishRequest{Publication: event(w.name[i])})
		cancel()
		took = append(took, time.Since(began))
		w.placed(i, r.GetPlaced(), err)
		w.mu[i].Unlock()
		tick(2 * time.Millisecond)
	}
	return took
}

// loaded runs publishers while something happens, and returns the times of all publishes
// in order.
func (w *crowd) loaded(while func()) []time.Duration {
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []time.Duration
	var publishers sync.WaitGroup
	for range 16 {
		publishers.Go(func() { // ends with ctx
			took := w.load(ctx)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	while()
	stop()
	publishers.Wait()
	slices.Sort(all)
	return all
}

// A router leaves with half of many channels: all go on where they were, and nobody who
// publishes meanwhile hears an error. With -v it tells time, memory, and pauses.
func TestManyChannelsAreHandedInOrder(t *testing.T) {
	c := newCluster(t, 2, "limits: {cache_bytes: 1073741824}\n")
	leaving, staying := c.Routers()[0], c.Routers()[1]
	w := newCrowd(t, c, staying, *many)
	w.all()
	calm := w.loaded(func() { tick(time.Second) })
	giver, _ := leaving.Resident()
	receiver, _ := staying.Resident()
	leaving.ForgetPeak()
	staying.ForgetPeak()
	var took time.Duration
	var peak int64
	during := w.loaded(func() {
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- leaving.Stop(time.Minute) }() // ends with the process
		for {
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
				took = time.Since(began)
				return
			default:
				_, now := leaving.Resident()
				peak = max(peak, now)
				tick(5 * time.Millisecond)
			}
		}
	})
	w.all()
	at := func(all []time.Duration, part float64) time.Duration {
		return all[int(part*float64(len(all)-1))].Round(100 * time.Microsecond)
	}
	t.Logf("%d channels, half of them at the router that left; its stop took %v: %s", *many, took.Round(time.Millisecond), handed(leaving))
	t.Logf("publishes before: p50 %v, p99 %v, longest %v of %d; during: p50 %v, p99 %v, longest %v of %d",
		at(calm, .5), at(calm, .99), at(calm, 1), len(calm), at(during, .5), at(during, .99), at(during, 1), len(during))
	then, most := staying.Resident()
	t.Logf("resident, MiB: giver %d before, peak %d; receiver %d before, peak %d, then %d", giver>>20, peak>>20, receiver>>20, most>>20, then>>20)
}

// handed is what a router said of it.
func handed(n *cluster.Node) string {
	last := "it has not said that it handed its channels over"
	for line := range strings.Lines(n.LogTail(50)) {
		if _, said, ok := strings.Cut(line, "channels were handed over"); ok {
			last = strings.TrimSpace(strings.TrimPrefix(said, `",`))
		}
	}
	return last
}
