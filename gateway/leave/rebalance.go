package leave

import (
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/gateway/settings"
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

// surplus decides, once a second, how many conns to move now; 0: none. It is
// pure but for the jitter that is passed in.
func (r *rebalancer) surplus(cfg settings.Rebalance, own, mean int, now time.Time, jitter time.Duration) int {
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

// shareSurplus moves what this edge has above its region's mean.
func (g *Governor) shareSurplus(b Bounds) {
	cfg := g.deps.Settings().Rebalance
	if cfg.Off || !g.deps.Edge.Ready() {
		return
	}
	now := time.Now()
	own := g.deps.Edge.Conns()
	mean, ok := g.deps.Targets.Mean(own, cfg.Balancer)
	if !ok {
		g.rebalance.looks = 0
		return
	}
	n := g.rebalance.surplus(cfg, own, mean, now, rand.N(rebalanceWait))
	if n == 0 {
		return
	}
	within := min(max(time.Duration(n)*time.Second/rebalanceRate, rebalanceLeast), rebalanceMost)
	op := g.records.begin(gatewayv1.OperationKind_OPERATION_KIND_REBALANCE, rebalanceSuffix, "automatic", now, within)
	d := g.depart(op, "rebalance", now, now, now.Add(within))
	d.surplus, d.below = true, mean
	for i := range d.parts {
		d.parts[i].quota = (n + i) / len(d.parts)
	}
	g.cfg.Log.Info("moving the surplus", "operation", op.Id, "conns", own, "mean", mean, "surplus", n)
	out := g.drive(b, d, drain.Config{GrantedOnly: true, KeepStragglers: true}, func(*drain.Plan, time.Time) bool {
		return b.Leave.Err() != nil || !g.deps.Edge.Ready() || g.records.mine() != nil
	})
	if out == brokenOff {
		g.records.broken(op, d, g.deps.Edge.Conns())
		return
	}
	g.rebalance.not = time.Now().Add(rebalancePause)
	g.records.end(op, d, true)
}
