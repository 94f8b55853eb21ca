package api

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// rateHorizon bounds how far ahead refused publishes are told to come back.
const rateHorizon = 5 * time.Second

// rate lets through so many events a second, of all publishers of a namespace at
// this router. It begins full. Who is refused is told a time of its own, one
// event apart from the one told before, so that those who obey do not come
// together.
type rate struct {
	// immutable after newRate
	perSecond float64
	burst     float64
	message   string

	mu     sync.Mutex // guards below
	tokens float64    // 0 <= tokens <= burst
	last   time.Time  // when tokens was right
	told   time.Time  // the latest time told to somebody
}

// newRates are those of all namespaces that have a limit.
func newRates(set *namespace.Set) map[*namespace.Namespace]*rate {
	rates := make(map[*namespace.Namespace]*rate)
	set.Known(func(name string, ns *namespace.Namespace) {
		if r := newRate(name, ns); r != nil {
			rates[ns] = r
		}
	})
	return rates
}

// newRate takes what Namespace says; nil: no limit.
func newRate(name string, ns *namespace.Namespace) *rate {
	if ns.PublishPerSecond == 0 {
		return nil
	}
	burst := ns.PublishBurst
	if burst == 0 {
		burst = ns.PublishPerSecond
	}
	return &rate{
		perSecond: float64(ns.PublishPerSecond), burst: float64(burst), tokens: float64(burst),
		message: fmt.Sprintf("namespace %s takes %d events a second; nothing was stored", name, ns.PublishPerSecond),
	}
}

// take admits one event, or says after which time to try again.
func (r *rate) take(now time.Time) (retryAfter time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if passed := now.Sub(r.last); !r.last.IsZero() && passed > 0 {
		r.tokens = min(r.burst, r.tokens+passed.Seconds()*r.perSecond)
	}
	r.last = now // also after the clock went back: nothing is gained by it
	if r.tokens >= 1 {
		r.tokens--
		return 0, true
	}
	free := now.Add(r.lasts(1 - r.tokens))
	if next := r.told.Add(r.lasts(1)); next.After(free) && next.Sub(now) <= rateHorizon {
		free = next
	}
	r.told = free
	return free.Sub(now), false
}

func (r *rate) lasts(events float64) time.Duration {
	return time.Duration(events / r.perSecond * float64(time.Second))
}

// limit takes one event off the namespace's rate. A publish that another router
// passed on was counted there.
func (s *Server) limit(p *channel.Publication) channel.Result {
	rate := s.rates[p.Namespace]
	if rate == nil || p.Forwarded {
		return channel.Result{}
	}
	after, ok := rate.take(s.cfg.Now())
	if ok {
		return channel.Result{}
	}
	s.metrics.rateLimited.Inc()
	// Rounded up to what the wire can say: a retry must not come too early.
	after = (after + time.Millisecond - 1).Truncate(time.Millisecond)
	return channel.Result{Code: codes.ResourceExhausted, RetryAfter: max(after, time.Millisecond), Message: rate.message}
}
