package router

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// slowStore takes its time for each read, and none for one that was given up.
type slowStore struct {
	history.Store
	each time.Duration
}

func (s *slowStore) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.each):
		return s.Store.Read(ctx, r)
	}
}

// Edges ask for far more cold channels than a slow store can read within the deadline of
// a question, and ask again when they are told. The store must not be kept busy with
// questions that are too old to be answered: everybody is served, at the store's pace.
func TestASlowStoreServesWhoAsksAgain(t *testing.T) {
	const channels, each, ranges = 1200, 200 * time.Millisecond, 50
	n := start(t, &slowStore{memory.New(memory.Default()), each}, func(c *Config) {
		c.Reads, c.ReadRanges, c.API.ReadDeadline = 1, ranges, time.Second
	})
	epochs := make([]uint64, channels)
	for i := range channels {
		channel := fmt.Sprint("chat:", i)
		epochs[i] = n.fill(channel, 2)
		n.forget(channel)
	}
	ideal := channels / ranges * each
	began := time.Now()
	var served, again int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range channels {
		wg.Go(func() {
			<-time.After(time.Duration(i) * time.Millisecond) // they do not come at once
			for time.Since(began) < 5*ideal {
				answer := make(chan *gatewayv1.Answer, 1)
				n.askForTest(position(fmt.Sprint("chat:", i), epochs[i], 1), func() bool { return false }, func(a *gatewayv1.Answer) { answer <- a })
				a := <-answer
				mu.Lock()
				if a.Status == gatewayv1.Status_STATUS_OK {
					served++
					mu.Unlock()
					return
				}
				again++
				mu.Unlock()
				<-time.After(time.Duration(a.RetryAfterMs) * time.Millisecond)
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d served in %v (the store needs %v), asked again %d times", served, channels, time.Since(began).Round(time.Millisecond), ideal, again)
	if served != channels {
		t.Errorf("%d of %d channels were never read", channels-served, channels)
	}
}
