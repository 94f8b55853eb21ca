package operations

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/operations/settle"
)

const (
	settleEvery = time.Second
	// settleName and a region are a name whose owner by rendezvous is the router whose
	// metrics tell that region's incidents. All routers keep the windows and can be asked.
	settleName = "\x00settle/"
)

// settleTimes are those of the regions, as this router hears of them.
type settleTimes struct {
	metrics settleMetrics
	start   time.Time // immutable

	mu      sync.Mutex // guards tracker; held for microseconds
	tracker *settle.Tracker
}

func newSettleTimes(r prometheus.Registerer) *settleTimes {
	return &settleTimes{metrics: newSettleMetrics(r), start: time.Now(), tracker: settle.New()}
}

// now is the wall clock of the start, carried on by the monotonic one: windows must
// not jump.
func (s *settleTimes) now() time.Time { return s.start.Add(time.Since(s.start)) }

// Heard takes every load figure that comes; from any goroutine.
func (s *Service) Heard(f *presence.Figure) {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	s.times.tracker.Hear(f, s.times.now())
}

// Gone takes every member that is no more; from any goroutine.
func (s *Service) Gone(m *presence.Member, left bool) {
	if m.Role != gatewayv1.Role_ROLE_EDGE {
		return
	}
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	s.times.tracker.Gone(m.Id, m.Incarnation, left, s.times.now())
}

// runSettleTimes looks for incidents once a second until ctx ends.
func (s *Service) runSettleTimes(ctx context.Context) error {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			news, running, dropped := s.times.step(s.cluster.operations())
			s.times.metrics.tell(news, running, dropped, func(region string) bool { return s.cluster.owner(settleName+region) == s.cfg.ID })
		}
	}
}

// step returns what is new, how many incidents of each region are not settled, and
// what was left out so far.
func (s *settleTimes) step(ops []*gatewayv1.Operation) (news settle.News, running map[string]int, dropped uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.Operations(ops)
	news = s.tracker.Step(s.now())
	running = make(map[string]int)
	for _, region := range s.tracker.Regions() {
		running[region] = s.tracker.Running(region)
	}
	return news, running, s.tracker.Dropped()
}

// ListIncidents returns the settle times that this router measured. Every router
// hears all edges; one that came later was told their last ten minutes, but not who
// was lost before.
func (s *Service) ListIncidents(_ context.Context, request *routerv1.ListIncidentsRequest) (*routerv1.ListIncidentsResponse, error) {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	return &routerv1.ListIncidentsResponse{Incidents: s.times.tracker.Incidents(request.Region)}, nil
}

// GetArrivals returns the windows of one region; those in which nothing happened are
// left out.
func (s *Service) GetArrivals(_ context.Context, request *routerv1.GetArrivalsRequest) (*routerv1.GetArrivalsResponse, error) {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	region := request.Region
	if region == "" {
		switch regions := s.times.tracker.Regions(); len(regions) {
		case 0:
		case 1:
			region = regions[0]
		default:
			return nil, status.Error(codes.InvalidArgument, "region: must be given: there are several")
		}
	}
	return &routerv1.GetArrivalsResponse{Windows: s.times.tracker.Arrivals(region, request.SinceMs, s.times.now())}, nil
}
