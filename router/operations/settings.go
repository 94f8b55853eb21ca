package operations

import (
	"context"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// GetSettings returns the hot settings of all edges.
func (s *Service) GetSettings(context.Context, *routerv1.GetSettingsRequest) (*routerv1.GetSettingsResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	settings := s.control.Settings()
	return &routerv1.GetSettingsResponse{Yaml: settings.Yaml, ChangedMs: settings.ChangedMs}, nil
}

// PutSettings replaces them, if they are good.
func (s *Service) PutSettings(ctx context.Context, request *routerv1.PutSettingsRequest) (*routerv1.PutSettingsResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	if err := s.control.PutSettings(ctx, request.Yaml); err != nil {
		return nil, controlError(err)
	}
	return &routerv1.PutSettingsResponse{}, nil
}
