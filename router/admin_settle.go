package router

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// ListIncidents returns the settle times that this router measured. Every router
// hears all edges; one that came later was told their last ten minutes, but not who
// was lost before.
func (s adminService) ListIncidents(_ context.Context, request *routerv1.ListIncidentsRequest) (*routerv1.ListIncidentsResponse, error) {
	s.settling.mu.Lock()
	defer s.settling.mu.Unlock()
	return &routerv1.ListIncidentsResponse{Incidents: s.settling.tracker.Incidents(request.Region)}, nil
}

// GetArrivals returns the windows of one region; those in which nothing happened are
// left out.
func (s adminService) GetArrivals(_ context.Context, request *routerv1.GetArrivalsRequest) (*routerv1.GetArrivalsResponse, error) {
	s.settling.mu.Lock()
	defer s.settling.mu.Unlock()
	region := request.Region
	if region == "" {
		switch regions := s.settling.tracker.Regions(); len(regions) {
		case 0:
		case 1:
			region = regions[0]
		default:
			return nil, status.Error(codes.InvalidArgument, "region: must be given: there are several")
		}
	}
	return &routerv1.GetArrivalsResponse{Windows: s.settling.tracker.Arrivals(region, request.SinceMs, s.settling.now())}, nil
}
