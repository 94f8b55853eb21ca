package operations

import (
	"context"

	"github.com/spillway-io/spillway/presence"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// ListNodes returns the members with their newest load figures.
func (s *Service) ListNodes(context.Context, *routerv1.ListNodesRequest) (*routerv1.ListNodesResponse, error) {
	members := s.cluster.members.Snapshot().Members()
	figures := s.cluster.members.Figures()
	now := s.cfg.Now()
	response := &routerv1.ListNodesResponse{Nodes: make([]*routerv1.Node, len(members))}
	for i, m := range members {
		n := &routerv1.Node{
			Id: m.Id, Role: presence.RoleName(m.Role), Region: m.Region, Zone: m.Zone, Address: m.Address,
			State: presence.StateName(m.State), Version: m.Version, Capacity: m.Capacity,
			UpMs: uint64(max(0, now.UnixMilli()-int64(m.StartedMs))),
		}
		if f := figureOf(figures, m); f != nil {
			n.Conns, n.Subscriptions, n.Channels = f.Conns, f.Subscriptions, f.Channels
			n.Capacity = f.Capacity // descriptors and memory may allow fewer than the record says
		}
		if heard := s.cluster.members.LastHeard(presence.KeyOf(m)); !heard.IsZero() {
			silent := uint64(max(0, now.Sub(heard).Milliseconds()))
			n.SilentMs = &silent
		}
		response.Nodes[i] = n
	}
	return response, nil
}
