package gateway

import (
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// rebalanceSuffix marks operations, and thereby the tickets of those moved by them.
const rebalanceSuffix = "-rebalance"

const (
	rebalanceLooks = 3               // seconds running in which the surplus must be there
	rebalanceWait  = 2 * time.Second // and a random part of this on top
	rebalanceRate  = 50              // clients a second, in the least to the most time for one:
	rebalanceLeast = 5 * time.Second
	rebalanceMost  = 30 * time.Second // what is left then is looked at anew
	rebalancePause = 10 * time.Second // after one that ended
)

// rebalancer remembers what the last looks showed; owned by the governor.
type rebalancer struct {
	looks int
	not   time.Time // not before
}

// surplus decides, once a second, how many conns to hand over now; 0: none. It is
// pure but for the jitter that is passed in.
func (r *rebalancer) surplus(cfg Rebalance, own, mean int, now time.Time, jitter time.Duration) int {
	over := own - mean
	if cfg.Off || float64(own) <= cfg.Ratio*float64(mean) || over < cfg.Surplus {
		r.looks = 0
		return 0
	}
	if now.Before(r.not) {
		return 0
	}
	if r.looks++; r.looks < rebalanceLooks {
		return 0
	}
	if r.looks == rebalanceLooks {
		r.not = now.Add(jitter) // not all that are overfull at once
		return 0
	}
	r.looks = 0
	return over
}

// shareSurplus hands over what this edge has above its region's mean.
func (e *Edge) shareSurplus(b bounds) {
	cfg := e.settings().Rebalance
	if cfg.Off || !e.ready.Load() {
		return
	}
	now := time.Now()
	own := int(e.counts.conns.Load())
	mean, ok := e.targets.Mean(own, cfg.Balancer)
	if !ok {
		e.governor.rebalance.looks = 0
		return
	}
	n := e.governor.rebalance.surplus(cfg, own, mean, now, rand.N(rebalanceWait))
	if n == 0 {
		return
	}
	within := min(max(time.Duration(n)*time.Second/rebalanceRate, rebalanceLeast), rebalanceMost)
	op := &gatewayv1.Operation{
		Id: control.NewOperationID(now) + rebalanceSuffix, Kind: gatewayv1.OperationKind_OPERATION_KIND_REBALANCE,
		State: gatewayv1.OperationState_OPERATION_STATE_RUNNING, Node: e.cfg.ID, Incarnation: e.targets.Incarnation(), Region: e.cfg.Region,
		StartedMs: uint64(now.UnixMilli()), DeadlineMs: uint32(within.Milliseconds()), Cause: "automatic",
	}
	h := e.newHandover(op, now, now, now.Add(within))
	h.reason, h.surplus, h.below = "rebalance", true, mean
	for i := range h.parts {
		h.parts[i].quota = (n + i) / len(h.parts)
	}
	e.record(op)
	e.log.Info("handing over surplus", "operation", op.Id, "conns", own, "mean", mean, "surplus", n)
	out := e.hand(b, h, drain.Config{GrantedOnly: true, KeepStragglers: true}, func(*drain.Plan, time.Time) bool {
		return b.leave.Err() != nil || !e.ready.Load() || e.myOperation() != nil
	})
	if out == brokenOff {
		e.recordBroken(op, h)
		return
	}
	e.governor.rebalance.not = time.Now().Add(rebalancePause)
	e.recordEnd(op, h, nil)
}
