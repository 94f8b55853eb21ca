package handovertest

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/clustertest"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// still is by default longer than a process may stand still without doubting what it
// knows (2 s); leases live for 10 s.
var still = flag.Duration("still", 2500*time.Millisecond, "how long a router stands still; 15s is longer than its lease, and than its silence on the bus")

// witness publishes on a channel through one router after the other, and notes what it was
// told.
type witness struct {
	channel string
	acked   []placedEvent
	began   atomic.Bool // something is acked
}

type placedEvent struct {
	place
	data string
}

// chain is a cluster with a witness for each of some channels.
type chain struct {
	t         *testing.T
	c         *cluster.Cluster
	clients   []routerv1.PublisherServiceClient
	history   []routerv1.HistoryServiceClient
	witnesses []*witness
}

func newChain(t *testing.T, c *cluster.Cluster) *chain {
	h := &chain{t: t, c: c}
	for _, n := range c.Routers() {
		conn, err := c.Dial(n)
		if err != nil {
			t.Fatal(err)
		}
		h.clients = append(h.clients, routerv1.NewPublisherServiceClient(conn))
		h.history = append(h.history, routerv1.NewHistoryServiceClient(conn))
	}
	for kind := range kinds {
		for i := range 8 {
			h.witnesses = append(h.witnesses, &witness{channel: fmt.Sprintf("%s:%d", kind, i)})
		}
	}
	return h
}

// publish goes on until ctx ends; each event is tried until it is acked.
func (h *chain) publish(ctx context.Context, w *witness, nth int) {
	for i := 0; ctx.Err() == nil; i++ {
		data := fmt.Sprintf(`{"n":%d}`, i)
		for try := 0; ctx.Err() == nil; try++ {
			call, cancel := context.WithTimeout(context.Background(), time.Second)
			r, err := h.clients[(nth+i+try)%len(h.clients)].Publish(call, &routerv1.PublishRequest{Publication: &routerv1.Publication{
				Channel: w.channel, Data: &routerv1.Publication_Json{Json: data}, Key: fmt.Sprint("k", i),
			}})
			cancel()
			if err == nil {
				w.acked = append(w.acked, placedEvent{place{r.Placed.Epoch, r.Placed.Offset}, data})
				w.began.Store(true)
				break
			}
			tick(10 * time.Millisecond)
		}
		tick(10 * time.Millisecond)
	}
}

// judge holds what was acked against history: of an epoch no offset was given to two
// events; epochs of one publisher, who waits for each ack, do not go back; a stored
// channel has one, and all that was acked is in it where it was said to be.
func (h *chain) judge(epochs int) {
	for _, w := range h.witnesses {
		at := make(map[place]string)
		seen := make(map[string]bool)
		for i, p := range w.acked {
			if other, twice := at[p.place]; twice && other != p.data {
				h.t.Errorf("%s: %s and %s are both at %s %d", w.channel, other, p.data, p.epoch, p.offset)
			}
			at[p.place] = p.data
			if seen[p.epoch] && p.epoch != w.acked[i-1].epoch {
				h.t.Errorf("%s: %s is in epoch %s again, after %s", w.channel, p.data, p.epoch, w.acked[i-1].epoch)
			}
			seen[p.epoch] = true
		}
		if len(w.acked) == 0 || len(seen) > epochs {
			h.t.Errorf("%s: %d acked, in %d epochs; want at most %d", w.channel, len(w.acked), len(seen), epochs)
		}
		if kinds[w.channel[:len(w.channel)-2]] == namespace.Committed {
			h.stored(w)
		}
	}
}

func (h *chain) stored(w *witness) {
	have := make(map[uint64]string)
	from := uint64(0)
	for more := true; more; {
		var page *routerv1.ReadHistoryResponse
		clustertest.Eventually(h.t, patience, "history of "+w.channel, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			var err error
			page, err = h.history[0].ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: w.channel, Offset: &from, Limit: 1000})
			return err == nil
		})
		for _, e := range page.Events {
			if e.Offset != from+1 {
				h.t.Fatalf("%s: %d comes after %d", w.channel, e.Offset, from)
			}
			from, have[e.Offset] = e.Offset, e.GetJson()
		}
		more = page.More
	}
	for _, p := range w.acked {
		if p.epoch != w.acked[0].epoch || have[p.offset] != p.data {
			h.t.Errorf("%s: %s was acked at %s %d, and there is %q", w.channel, p.data, p.epoch, p.offset, have[p.offset])
		}
	}
}

// Routers that stand still or are killed while channels are handed to them, or by them:
// nothing acked is lost where it is stored, no offset is given twice, and a channel begins
// at most one epoch for each of these faults.
func TestFaultsWhileChannelsAreHanded(t *testing.T) {
	c := newCluster(t, 3, "")
	first, second := c.Routers()[0], c.Routers()[1]
	h := newChain(t, c)
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	ready := func(nodes ...*cluster.Node) {
		for _, n := range nodes {
			if !n.Running() {
				must(n.Start())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, n := range c.Routers() {
			if err := c.AwaitReady(ctx, n); err != nil {
				t.Fatal(err)
			}
		}
		tick(500 * time.Millisecond)
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i, w := range h.witnesses {
		load.Go(func() { h.publish(ctx, w, i) }) // ends with ctx
	}
	for _, w := range h.witnesses {
		clustertest.Eventually(t, patience, w.channel+" is published on", w.began.Load)
	}
	faults := []struct {
		name string
		do   func()
	}{
		{"a receiver stands still", func() {
			must(second.Signal(syscall.SIGSTOP))
			must(first.Signal(syscall.SIGTERM))
			tick(*still)
			must(second.Signal(syscall.SIGCONT))
		}},
		{"the giver stands still in the middle", func() {
			must(first.Signal(syscall.SIGTERM))
			tick(5 * time.Millisecond)
			must(first.Signal(syscall.SIGSTOP))
			tick(*still)
			must(first.Signal(syscall.SIGCONT))
		}},
		{"the giver is killed in the middle", func() {
			must(first.Signal(syscall.SIGTERM))
			tick(8 * time.Millisecond)
			must(first.Kill())
		}},
		{"a receiver is killed in the middle", func() {
			must(first.Signal(syscall.SIGTERM))
			tick(5 * time.Millisecond)
			must(second.Kill())
		}},
	}
	for _, f := range faults {
		began := time.Now()
		f.do()
		select {
		case <-first.Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the giver's stop goes on", f.name)
			must(first.Kill())
		}
		t.Logf("%s: %v to the giver's end: %s", f.name, time.Since(began).Round(time.Millisecond), handed(first))
		ready(first, second)
	}
	stop()
	load.Wait()
	h.judge(1 + len(faults))
}
