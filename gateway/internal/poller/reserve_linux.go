package poller

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Reserve holds descriptors that mean nothing, to be given up when accept finds
// none left: without one a client can be neither accepted nor refused, sits in
// the backlog, and the listener is reported as ready for ever.
//
// On ErrDescriptors: Release, Accept, refuse, Close, and Refill at the end of
// the turn. Another thread may take the descriptor in between; then Accept says
// ErrDescriptors again. Safe for concurrent use.
type Reserve struct {
	mu   sync.Mutex // guards all below
	want int
	fds  []int
}

// NewReserve takes n descriptors, or none and an error.
func NewReserve(n int) (*Reserve, error) {
	r := &Reserve{want: n}
	if err := r.Refill(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Release gives one descriptor up and reports whether there was one.
func (r *Reserve) Release() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.fds) - 1
	if last < 0 {
		return false
	}
	unix.Close(r.fds[last])
	r.fds = r.fds[:last]
	return true
}

// Refill takes back what was given up, as far as it can; an error says that it
// is not whole yet (errors.Is EMFILE or ENFILE).
func (r *Reserve) Refill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.fds) < r.want {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("reserve descriptors: %d of %d: %w", len(r.fds), r.want, os.NewSyscallError("open", err))
		}
		r.fds = append(r.fds, fd)
	}
	return nil
}

// Held returns how many descriptors are in reserve, at most what was asked for.
func (r *Reserve) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.fds)
}

// Close gives all up for good; Refill after it does nothing.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds, r.want = nil, 0
}
