package handover

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	askAgain  = 15 * time.Millisecond  // after a router could not say
	askComing = 200 * time.Millisecond // after one said that the channel comes
)

// seeker is the channels that wait to be handed over to this router. All other routers are
// asked for each, together: whoever has it hands it over before all others. When all have
// said that they have it not, it begins here.
type seeker struct {
	wake chan struct{} // capacity 1

	mu  sync.Mutex // guards below
	due []sought
}

type sought struct {
	name string
	next time.Time // not before
}

func newSeeker() seeker { return seeker{wake: make(chan struct{}, 1)} }

// Seek asks the other routers for a channel. It does not block. What waits is bounded by
// the channels of the table.
func (h *Handover) Seek(name string) {
	h.seeker.add([]string{name}, time.Time{})
	signal(h.seeker.wake)
}

func (s *seeker) add(names []string, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.due = append(s.due, sought{name, next})
	}
}

// take returns the channels that are to be asked for now.
func (s *seeker) take(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.due[:0]
	for _, d := range s.due {
		if d.next.After(now) {
			kept = append(kept, d)
		} else {
			names = append(names, d.name)
		}
	}
	clear(s.due[len(kept):])
	if s.due = kept; len(kept) == 0 {
		s.due = nil
	}
	return names
}

// seek asks until ctx ends.
func (h *Handover) seek(ctx context.Context) error {
	var rounds sync.WaitGroup
	defer rounds.Wait()
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.seeker.wake:
		case <-ticker.C:
		}
		names := h.seeker.take(time.Now())
		if len(names) == 0 {
			continue
		}
		for part := range slices.Chunk(names, maxTake) {
			// It asks all routers once and ends at the latest with its deadline; seek waits.
			rounds.Go(func() { h.round(ctx, part) })
		}
	}
}

// round asks every other router for some channels.
func (h *Handover) round(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Wait/2)
	defer cancel()
	look := h.Views.Look(time.Now()) // before the channels are found to be ours by it, or a newer view
	if names = h.Channels.Awaiting(names); len(names) == 0 {
		return
	}
	if len(h.Views.Snapshot().Routers()) == 0 { // no view yet
		h.seeker.add(names, time.Now().Add(askAgain))
		return
	}
	others := h.Views.Others()
	answers := make([][]gatewayv1.Taking, len(others))
	var asked sync.WaitGroup
	for i, m := range others {
		asked.Go(func() { answers[i] = h.ask(ctx, m, look.Revision(), names) }) // ends with ctx
	}
	asked.Wait()
	for n, name := range names {
		nothing, coming := true, false
		for _, a := range answers {
			nothing = nothing && a[n] == gatewayv1.Taking_TAKING_NOTHING
			coming = coming || a[n] == gatewayv1.Taking_TAKING_COMING
		}
		switch {
		case nothing:
			h.Channels.Nobody(name)
		case coming:
			h.seeker.add(names[n:n+1], time.Now().Add(askComing))
		default:
			h.seeker.add(names[n:n+1], time.Now().Add(askAgain))
		}
	}
}

// ask is what one router says of channels. One that is gone, cannot be reached, or is of a
// version that hands nothing over has nothing; of one that does not answer nothing is known.
func (h *Handover) ask(ctx context.Context, m *presence.Member, revision uint64, names []string) []gatewayv1.Taking {
	all := make([]gatewayv1.Taking, len(names))
	conn, err := h.Peers.Conn(m)
	if err == nil {
		h.metrics.takes.Inc()
		var response *gatewayv1.TakeResponse
		response, err = gatewayv1.NewHandoverServiceClient(conn).Take(ctx, &gatewayv1.TakeRequest{Router: h.cfg.ID, Revision: revision, Channels: names})
		if err == nil && len(response.Results) == len(names) {
			for i, r := range response.Results {
				all[i] = r.Taking
			}
			return all
		}
	}
	taking := gatewayv1.Taking_TAKING_LATER
	if h.Views.Router(m.Id) == nil || status.Code(err) == codes.Unimplemented {
		taking = gatewayv1.Taking_TAKING_NOTHING
	}
	for i := range all {
		all[i] = taking
	}
	return all
}
