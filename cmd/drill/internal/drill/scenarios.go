package drill

import (
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
)

// notice is what a drain behind one address waits for its balancer, which acts on the
// second failure of a check every 5 s.
const notice = 12 * time.Second

// scenarios in the order of the documentation.
func scenarios() []scenario {
	return []scenario{
		{name: "restart", help: "one edge is told to end (SIGTERM)", run: (*world).restart, tune: leaving, given: true, one: true},
		{name: "kill", help: "one edge is killed (SIGKILL)", run: (*world).kill, one: true},
		{name: "old-clients", help: "one edge is killed, and its clients retry for ever without jitter", run: (*world).oldClients,
			tune: oldClients, second: withoutAdmission},
		{name: "rolling", help: "all edges are restarted, one after the other", run: (*world).rolling, tune: rollingOn, one: true},
		{name: "evacuate", help: "one of two regions is emptied, and the operation aborted once", run: (*world).evacuate, tune: twoRegions},
		{name: "scale-out", help: "two cold edges join a full cluster", run: (*world).scaleOut, tune: scaleOut, one: true},
		{name: "flap", help: "connections are accepted and closed within 5 s, for a minute", run: (*world).flap, tune: flap, one: true},
		{name: "proxy-cut", help: "a balancer cuts every connection, with FIN and without", run: (*world).proxyCut, tune: proxyCut, second: silently, one: true},
		{name: "store-away", help: "the store is stopped, and an edge killed meanwhile", run: (*world).storeAway, tune: storeAway},
		{name: "outage", help: "NATS, etcd, the store or all routers (--part) are away for ten minutes (--away)", run: (*world).outage, tune: outage},
		{name: "backfill", help: "all clients are away while events come, and come back at once", run: (*world).backfill, tune: backfill, second: shared},
	}
}

// leaving: behind one address the balancer has to notice first, and the time for it is
// a part of the deadline.
func leaving(o *Options) {
	if o.OneAddress != "" && o.Notice == 0 {
		o.Notice = notice
		o.Deadline += notice
	}
}

// rollingOn moves everybody twice through a balancer that costs as much as an edge: as
// with proxy-cut, half of the clients are what two cores can show.
func rollingOn(o *Options) {
	leaving(o)
	if o.OneAddress != "" {
		o.Clients = min(o.Clients, 30_000)
	}
}

func oldClients(o *Options) {
	if interval(o.Policy) == 0 {
		o.Policy = "fixed-1s"
	}
}

func withoutAdmission(o *Options) (judged bool, note string) {
	o.Admission.Off = true
	return false, "the same with admission off"
}

func twoRegions(o *Options) {
	o.Edges += o.Edges % 2
	o.Clients = min(o.Clients, o.Edges*o.MaxConns*2/5) // the other region has room for all
}

func scaleOut(o *Options) { o.Spare = 2 }

func flap(o *Options) {
	o.OneAddress, o.Clients, o.Policy = "builtin", min(o.Clients, 6_000), "sdk"
}

// proxyCut has everybody come back at once, through a balancer that costs as much as an
// edge: half of the clients are what two cores can show.
func proxyCut(o *Options) {
	o.OneAddress, o.Clients = "builtin", min(o.Clients, 30_000)
	o.MaxConns = max(o.Clients/o.Edges*10/9, 40)
}

func silently(o *Options) (judged bool, note string) {
	o.Silent = true
	return true, "the same without FIN: clients have to find out"
}

func storeAway(o *Options) { o.Store, o.Live = cluster.Postgres, true }

// outage is about what stays as it is: few clients, and little to do, show it.
func outage(o *Options) {
	o.Store, o.Clients, o.Edges, o.Rate, o.Policy = cluster.Postgres, min(o.Clients, 500), min(o.Edges, 3), min(o.Rate, 50), "sdk"
	o.Together = 1
	o.late = o.Clients / 5
	o.Live = o.Part == "etcd" || o.Part == "store" // without the bus or a router they are lost, and said to be
}

// backfill is a storm of resumes on distinct channels, and then on a hundredth of them.
func backfill(o *Options) {
	o.Store, o.Clients, o.Edges, o.Together, o.still = cluster.Postgres, min(o.Clients, 10_000), min(o.Edges, 4), 1, true
	o.Generators, o.Policy = 2, "sdk"
}

func shared(o *Options) (judged bool, note string) {
	o.Together = 100
	return true, "the same on shared channels, 100 clients each"
}
