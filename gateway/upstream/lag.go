package upstream

import (
	"sync"
	"time"
)

// lagMemory is how long what a router told is believed.
const lagMemory = 2 * time.Second

// lag is how far behind routers are with backfill, as their answers tell.
type lag struct {
	mu      sync.Mutex // guards routers; a leaf
	routers map[string]toldLag
}

type toldLag struct {
	lag time.Duration
	at  time.Time
}

func (l *lag) told(router string, d time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d == 0 {
		delete(l.routers, router)
		return
	}
	if l.routers == nil {
		l.routers = make(map[string]toldLag)
	}
	l.routers[router] = toldLag{d, now}
}

// worst is the longest that was told of late.
func (l *lag) worst(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := time.Duration(0)
	for router, t := range l.routers {
		if now.Sub(t.at) >= lagMemory {
			delete(l.routers, router)
			continue
		}
		most = max(most, t.lag)
	}
	return most
}

// BackfillLag is the longest that a question waits which only the store can answer,
// at the router where that is worst; 0: none waits long. It does not block.
func (u *Upstream) BackfillLag() time.Duration { return u.lag.worst(time.Now()) }
