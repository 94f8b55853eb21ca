package leave

import (
	"net/netip"
	"sync"
)

// maxSources bounds the addresses that one confirmation names: 64 KB of them.
const maxSources = 4_096

// sources are the addresses of a departure's clients, told to receivers that end TLS:
// whoever comes from one of them passes their gate first. Past maxSources the rest
// waits there like all others.
type sources struct {
	mu   sync.Mutex // guards seen
	seen map[netip.Addr]struct{}
}

func (s *sources) add(a netip.Addr) {
	if !a.IsValid() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[netip.Addr]struct{})
	}
	if len(s.seen) < maxSources {
		s.seen[a.Unmap()] = struct{}{}
	}
}

func (s *sources) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]string, 0, len(s.seen))
	for a := range s.seen {
		list = append(list, a.String())
	}
	return list
}
