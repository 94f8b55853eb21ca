package operations

import (
	"context"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	// certainAfter the end of the last of its incidents no late window changes what
	// is told of an operation, but for those who come back later.
	certainAfter = 20 * time.Second
	// finalAfter its start it is known who never comes back; unsettledAfter it nothing
	// is measured any more.
	finalAfter     = 5*time.Minute + 10*time.Second
	unsettledAfter = 9*time.Minute + 10*time.Second
)

// settlementOf sums what incidents say of an operation; nil: nothing. An incident may
// have begun before it, for another cause: peak is asked for its own part. It is pure.
func settlementOf(op *gatewayv1.Operation, incidents []*routerv1.Incident, peak func(region string, fromMS, toMS uint64) float64, now time.Time) *gatewayv1.Settlement {
	var mine []*routerv1.Incident
	s := &gatewayv1.Settlement{Settled: true}
	for _, i := range incidents {
		for _, c := range i.Causes {
			if c.Kind != "operation" || c.Id != op.Id {
				continue
			}
			mine = append(mine, i)
			if s.StartMs == 0 || c.StartMs < s.StartMs {
				s.StartMs = c.StartMs
			}
			// Regions that the clients went to tell the same of them.
			s.Displaced, s.Back = max(s.Displaced, c.Displaced), max(s.Back, c.Back)
			s.CaughtUp, s.NeverBack = max(s.CaughtUp, c.CaughtUp), max(s.NeverBack, c.NeverBack)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	end := uint64(0)
	for _, i := range mine {
		until := i.SettledMs
		if until == 0 {
			until = uint64(now.UnixMilli())
		}
		s.PeakPerSecond = max(s.PeakPerSecond, peak(i.Region, s.StartMs, until))
		switch {
		case i.SettledMs == 0 && i.Region == op.Region && i.Admitted == 0 && len(mine) > 1:
			// All went elsewhere: where nobody comes, nothing has to settle.
		case i.SettledMs == 0:
			s.Settled = false
		default:
			end = max(end, i.SettledMs)
		}
	}
	if s.Settled = s.Settled && !displaces(op); s.Settled {
		s.SettleMs = max(end, s.StartMs) - s.StartMs
	}
	age := now.Sub(time.UnixMilli(int64(s.StartMs)))
	s.Final = s.Settled && age >= finalAfter || age >= unsettledAfter
	return s
}

// displaces says that an operation may still displace clients.
func displaces(op *gatewayv1.Operation) bool {
	return op.State == gatewayv1.OperationState_OPERATION_STATE_RUNNING
}

// settlement is what this router measured of an operation, or what stands in its
// record.
func (s *settleTimes) settlement(op *gatewayv1.Operation) *gatewayv1.Settlement {
	if op.Settlement.GetFinal() {
		return op.Settlement
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	measured := settlementOf(op, s.tracker.Incidents(""), s.tracker.Peak, s.now())
	if measured == nil || measured.Displaced < op.Settlement.GetDisplaced() {
		return op.Settlement // a router that has just started has not heard all of it
	}
	return measured
}

// keepSettlement writes down what was measured, twice at most: when it has settled,
// and when it is final.
func (s *supervisor) keepSettlement(ctx context.Context, op *gatewayv1.Operation) {
	now := s.times.now()
	m := s.times.settlement(op)
	settled := m.GetSettled() && now.Sub(time.UnixMilli(int64(m.GetStartMs()+m.GetSettleMs()))) >= certainAfter
	if m == nil || op.Settlement.GetFinal() || !m.Final && (!settled || op.Settlement != nil) {
		return
	}
	err := s.control.UpdateOperation(ctx, op.Id, func(op *gatewayv1.Operation) bool {
		op.Settlement = m
		return true
	})
	if err != nil {
		s.log.Debug("could not write down how an operation settled; trying on", "operation", op.Id, "err", err)
		return
	}
	s.log.Info("operation settled", "operation", op.Id, "kind", control.KindName(op.Kind), "settled", m.Settled,
		"settle_time", time.Duration(m.SettleMs)*time.Millisecond, "peak_per_second", m.PeakPerSecond,
		"displaced", m.Displaced, "back", m.Back, "caught_up", m.CaughtUp, "never_back", m.NeverBack)
}

// showSettlement is it as operators see it.
func showSettlement(m *gatewayv1.Settlement) *routerv1.Settlement {
	if m == nil {
		return nil
	}
	return &routerv1.Settlement{
		StartMs: m.StartMs, SettleMs: m.SettleMs, Settled: m.Settled, PeakPerSecond: m.PeakPerSecond,
		Displaced: m.Displaced, Back: m.Back, CaughtUp: m.CaughtUp, NeverBack: m.NeverBack,
	}
}
