package torture

import (
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
)

// recorder takes the notes of a trial. Its methods may be called from any goroutine.
type recorder struct {
	began time.Time // immutable

	mu      sync.Mutex // guards all below
	notes   ledger.Notes
	streams []*stream
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

// now is the one clock of all notes.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

func (r *recorder) published(p ledger.Publish) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes.Publishes = append(r.notes.Publishes, p)
}

func (r *recorder) read(page ledger.Read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes.Reads = append(r.notes.Reads, page)
}

func (r *recorder) trimmed(t ledger.Trim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes.Trims = append(r.notes.Trims, t)
}

func (r *recorder) final(page ledger.Read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes.Finals = slices.DeleteFunc(r.notes.Finals, func(p ledger.Read) bool { return p.Channel == page.Channel })
	r.notes.Finals = append(r.notes.Finals, page)
}

// outcomes counts what publishers were told.
func (r *recorder) outcomes() (acked, unknown, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.notes.Publishes {
		switch r.notes.Publishes[i].Outcome {
		case ledger.Acked:
			acked++
		case ledger.Refused:
			refused++
		default:
			unknown++
		}
	}
	return acked, unknown, refused
}

// all are the notes, once everybody has stopped.
func (r *recorder) all() *ledger.Notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.notes
	for _, s := range r.streams {
		s.mu.Lock()
		n.Streams = append(n.Streams, s.notes)
		s.mu.Unlock()
	}
	return &n
}

// stream is one subscription that is noted.
type stream struct {
	r *recorder

	mu    sync.Mutex // guards all below
	notes ledger.Stream
	at    ledger.Position
	known bool // at means something
	owner any  // who may note steps: a client, or a connection; another's come too late
}

func (r *recorder) stream(by, channel string) *stream {
	s := &stream{r: r, notes: ledger.Stream{By: by, Channel: channel}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// take it over: what others note from now on comes too late.
func (s *stream) take(owner any) (at ledger.Position, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owner = owner
	return s.at, s.known
}

func (s *stream) step(owner any, step ledger.Step) {
	step.Time = s.r.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != owner {
		return
	}
	s.notes.Steps = append(s.notes.Steps, step)
	switch step.Kind {
	case ledger.Joined, ledger.Received, ledger.Lost:
		s.at, s.known = step.At, true
	}
}

func (s *stream) position() (ledger.Position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.known
}

// all subscriptions so far.
func (r *recorder) subscriptions() []*stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.streams)
}

// settle marks a stream as one that had time to catch up.
func (s *stream) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes.Live = true
}
