// Package settings declares what an operator can set of an edge, with the defaults and
// the rules (package schema tells how).
//
// Package gateway embeds Edge in its Config and takes Hot again while it runs
// (Edge.Reload). It stands apart because routers check what an operator puts for all
// edges, and link no edge for that. It holds data and rules only: no goroutine, no I/O.
//
// Left out on purpose: certificates, tokens, addresses of bus and etcd, which the mains
// turn into parts of an edge (cmd/internal/gatewayfile).
package settings

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/proto/schema"
)

// PathWS is where clients connect.
const PathWS = "/v1/ws"

// Edge is all that an operator can set of an edge.
type Edge struct {
	Listen       string   `key:"listen" default:"127.0.0.1:8400" rule:"host:port" doc:"The edge accepts clients at this address. Port 0 picks a port."`
	AdvertiseURL string   `key:"advertise_url" must:"must be a ws:// or wss:// URL that ends in /v1/ws" zero:"none: the edge is behind a balancer" example:"wss://edge-1.example.com/v1/ws" doc:"This is the WebSocket URL of this one edge, to which other edges send their clients."`
	Origins      []string `key:"origins" zero:"the own host only" example:"[app.example.com]" doc:"Pages of these hosts may connect, besides those of the own host; \"*\" allows all."`
	Proxies      []string `key:"trusted_proxies" must:"must be a network (10.0.0.0/8) or an address" zero:"none" example:"[10.0.0.0/8]" doc:"The edge believes X-Forwarded-For from these networks and addresses. A leaving edge uses it to name the addresses of its clients to edges that end TLS."`

	SendQueueBytes int `key:"limits.send_queue_bytes" default:"256 KiB" unit:"bytes" rule:"at least 4 KiB" doc:"An edge queues so much for one connection. A client that is further behind has to repair."`

	Hot `hot:"true"`
}

// Hot is the part that can change while an edge runs. No socket is touched by a change:
// connections that are held stay, also past a lower limit.
type Hot struct {
	Admission admission.Settings `key:"admission"`

	MaxConns          int   `key:"limits.max_conns" default:"20,000" unit:"connections" must:"must be more than limits.margin" doc:"An edge holds so many connections, or fewer where descriptors or memory do not allow as many."`
	Margin            int   `key:"limits.margin" default:"500" unit:"connections" rule:"not negative" doc:"So many of max_conns are kept free of fresh clients."`
	MaxMemoryBytes    int64 `key:"limits.max_memory_bytes" default:"0" unit:"bytes" rule:"not negative" zero:"GOMEMLIMIT, or what the cgroup allows" doc:"The process may take so much memory. It is a soft limit, which also bounds connections by what they are measured to take."`
	MaxSubscriptions  int   `key:"limits.max_subscriptions" default:"1,000" unit:"subscriptions" rule:"above 0" doc:"One connection may have so many subscriptions."`
	MaxFrameBytes     int   `key:"limits.max_frame_bytes" default:"64 KiB" unit:"bytes" rule:"between 1 KiB and 1 MiB" doc:"One client message may be so large. A connection keeps the limit that it was told when it came."`
	RefusalsPerSecond int   `key:"limits.refusals_per_second" default:"2,000" unit:"refusals per second" rule:"above 0" doc:"So many refusals say when to come back. Past it connections are reset, which costs less."`
	ReloadPerSecond   int   `key:"limits.reloads_per_second" default:"200" unit:"reloads per second" rule:"above 0" doc:"All clients of the cluster together are asked for so many reloads of their state."`

	TLSHandshakesPerSecond int `key:"tls.handshakes_per_second" default:"0" unit:"handshakes per second" rule:"not negative" zero:"what takes 60 % of the cores, by the cost of one as measured at start" doc:"An edge that ends TLS begins so many handshakes."`

	PingInterval time.Duration `key:"heartbeat.ping_interval" default:"30s" rule:"at least 2s" doc:"Clients are told to ping so often. The edge pings after 1.5 silent intervals and closes after 2.5."`
	PongTimeout  time.Duration `key:"heartbeat.pong_timeout" default:"10s" rule:"above 0s" doc:"Clients are told to wait so long for the answer to a ping."`

	DrainDeadline time.Duration `key:"drain.deadline" default:"25s" rule:"above 0s" doc:"A leaving edge takes so long from the signal to the last close."`
	DrainNotice   time.Duration `key:"drain.notice" default:"auto" auto:"0s with advertise_url; without one 15s, at most three fifths of drain.deadline" must:"must be shorter than drain.deadline, which includes it" example:"15s" doc:"A leaving edge spends so much of the deadline on waiting until balancers see that it is not ready."`

	Rebalance Rebalance `key:"rebalance"`
}

// Rebalance is when an overfull edge moves its surplus of clients to other edges.
type Rebalance struct {
	Off      bool          `key:"off" default:"false" doc:"An overfull edge keeps its clients."`
	Ratio    float64       `key:"ratio" default:"1.1" rule:"above 1" doc:"An edge is overfull if it has so many times the connections of the mean edge of its region, and surplus is passed too."`
	Surplus  int           `key:"surplus" default:"200" unit:"connections" rule:"above 0" doc:"An edge is overfull if it has so many connections above the mean, and ratio is passed too."`
	Window   time.Duration `key:"window" default:"10m" rule:"above 0s" doc:"A client is moved once in this time at most, and a rebalance that moved somebody is followed by a pause as long."`
	MaxAge   time.Duration `key:"max_age" default:"0s" rule:"not negative" zero:"none" doc:"A client is asked to move on when its connection is so old, give or take a fifth."`
	Balancer bool          `key:"balancer_counts" default:"false" doc:"The balancer in front of edges without advertise_url counts connections, so that newcomers land where there are few. Without it such edges do not rebalance."`
}

// noticeBehindBalancer is what a balancer may take to see that an edge is not ready: two
// checks of 5 s, and some.
const noticeBehindBalancer = 15 * time.Second

// Notice is how long a drain waits for balancers: an edge with an address of its own
// need not, one behind a balancer must outlast its health checks.
func (h *Hot) Notice(advertised bool) time.Duration {
	switch {
	case h.DrainNotice != schema.Auto:
		return h.DrainNotice
	case advertised:
		return 0
	}
	return min(noticeBehindBalancer, h.DrainDeadline*3/5)
}

// Networks are the trusted proxies; an address is a network of one.
func (e *Edge) Networks() []netip.Prefix {
	all := make([]netip.Prefix, len(e.Proxies))
	for i, text := range e.Proxies {
		all[i], _ = network(text) // Check has told what is wrong with them
	}
	return all
}

func network(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), err
}

// Validate reports every problem at once.
func (h *Hot) Validate() error { return schema.Validate(h) }

// Check implements schema.Checker.
func (e *Edge) Check(p *schema.Problems) {
	for _, text := range e.Proxies {
		if _, err := network(text); err != nil {
			p.AddValue(&e.Proxies, text, "must be a network (10.0.0.0/8) or an address")
		}
	}
	if e.AdvertiseURL == "" {
		return
	}
	if u, err := url.Parse(e.AdvertiseURL); err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" {
		p.AddValue(&e.AdvertiseURL, u, "must be a ws:// or wss:// URL")
	} else if !strings.HasSuffix(u.Path, PathWS) {
		p.AddValue(&e.AdvertiseURL, u, "must end in "+PathWS)
	}
}

// Check implements schema.Checker.
func (h *Hot) Check(p *schema.Problems) {
	if h.MaxConns <= h.Margin && !p.Has(&h.Margin) {
		p.Add(&h.MaxConns, fmt.Sprintf("must be more than %s (%d)", p.Key(&h.Margin), h.Margin))
	}
	if n := h.DrainNotice; n != schema.Auto && (n < 0 || n >= h.DrainDeadline) && !p.Has(&h.DrainDeadline) {
		p.Add(&h.DrainNotice, "must be shorter than "+p.Key(&h.DrainDeadline)+", which includes it")
	}
}
