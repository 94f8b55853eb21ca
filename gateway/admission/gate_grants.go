package admission

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Offer answers another edge's request for room.
func (g *Gate) Offer(r *gatewayv1.GrantRequest, conns int, now time.Time) *gatewayv1.GrantOffer {
	fresh, _ := g.rate(LaneFresh, now)
	resume, _ := g.rate(LaneResume, now)
	moved, _ := g.rate(LaneMoved, now)
	return g.grants.Offer(r, Receiver{
		Headroom: g.capacity.MaxConns - g.capacity.Margin - conns, MovedPerSecond: moved, FreshPerSecond: min(fresh, resume),
		Region: g.region, Draining: g.draining, Drains: g.drains,
		CriticalReserve: g.settings.CriticalReserve, ForeignPercent: g.settings.ForeignPercent,
	}, now)
}

// Confirm keeps or gives back what was offered.
func (g *Gate) Confirm(c *gatewayv1.GrantConfirm, now time.Time) *gatewayv1.GrantConfirmed {
	return g.grants.Confirm(c, now)
}
