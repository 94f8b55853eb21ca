package relay

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// As balancers do: asked every 5 s, out after the second failure, in again after the
// second success.
const (
	healthEvery = 5 * time.Second
	healthTime  = 2 * time.Second
	healthTurns = 2
)

// health knows which backends may get new connections.
type health struct {
	urls []string
	down []atomic.Bool
}

func newHealth(backends []Backend) *health {
	h := &health{down: make([]atomic.Bool, len(backends))}
	for _, b := range backends {
		h.urls = append(h.urls, b.Health)
	}
	return h
}

func (h *health) well(i int) bool { return !h.down[i].Load() }

// run asks until ctx ends.
func (h *health) run(ctx context.Context) {
	streak := make([]int, len(h.urls)) // answers in a row that say the other thing
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		good := h.ask(ctx)
		for i := range h.urls {
			if good[i] == h.well(i) {
				streak[i] = 0
			} else if streak[i]++; streak[i] >= healthTurns {
				h.down[i].Store(!good[i])
				streak[i] = 0
			}
		}
	}
}

// ask all at once.
func (h *health) ask(ctx context.Context) []bool {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	good := make([]bool, len(h.urls))
	var wg sync.WaitGroup
	for i, url := range h.urls {
		if url == "" {
			good[i] = true
			continue
		}
		wg.Go(func() { good[i] = answers(ctx, url) }) // ends with the deadline; waited for below
	}
	wg.Wait()
	return good
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
