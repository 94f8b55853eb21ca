package channel_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// source gives runs to a writer.
type source struct {
	wake chan struct{}
	mu   sync.Mutex // guards below
	runs []*channel.Run
	done []*channel.Run
}

func (s *source) Wake() <-chan struct{} { return s.wake }

func (s *source) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) > 0
}

func (s *source) Take(int, int64) []*channel.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

func (s *source) Written(runs []*channel.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, runs...)
}

func (s *source) written() []*channel.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// faultyStore does what it is told with the next calls.
type faultyStore struct {
	*memory.Store
	mu   sync.Mutex // guards below
	mode string
	late []history.Run // given up, and perhaps stored later
}

var errAway = errors.New("the store is away")

func (s *faultyStore) is(mode string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode == mode
}

func (s *faultyStore) set(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *faultyStore) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if s.is("heads away") {
		return nil, errAway
	}
	return s.Store.Heads(ctx, q)
}

func (s *faultyStore) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	if s.is("reads away") {
		return nil, errAway
	}
	return s.Store.Read(ctx, r)
}

func (s *faultyStore) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	for _, r := range runs {
		for _, e := range r.Events {
			if strings.HasPrefix(string(e.Data), `"bad`) {
				return nil, &history.RefusedError{Err: errors.New("bad")}
			}
		}
	}
	switch {
	case s.is("not stored"):
		return nil, errAway
	case s.is("stored, not told"):
		_, err := s.Store.Append(ctx, runs)
		return nil, errors.Join(errAway, err)
	case s.is("late"):
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range runs {
			r.Events = slices.Clone(r.Events)
			s.late = append(s.late, r)
		}
		return nil, errAway
	}
	return s.Store.Append(ctx, runs)
}

// land stores what was given up, if the fence lets it, or drops it.
func (s *faultyStore) land(ctx context.Context, stores bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.late {
		if stores {
			_, _ = s.Store.Append(ctx, []history.Run{r}) // refused: its key came first
		}
	}
	s.late = nil
}

// head is that of the row.
func (s *faultyStore) head(ctx context.Context) channel.Position {
	p, _ := s.page(ctx)
	return channel.Position{Epoch: p.Epoch, Offset: p.Head}
}

func (s *faultyStore) page(ctx context.Context) (history.Page, error) {
	pages, err := s.Store.Read(ctx, []history.Range{{Channel: name, Limit: 1 << 20}})
	if err != nil {
		return history.Page{}, err
	}
	return pages[0], nil
}
