package gateway

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"net/url"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/proto/schema"
)

// Config is what an edge is told. Default gives a working one.
type Config struct {
	presence.Identity        // its ID is told to clients as `node`, its region too
	Cluster           string // name of the cluster (its etcd prefix): tickets are good in one only
	Version           string // told in logs only

	settings.Edge // what operators set; Reload takes the part of it that is hot

	Anonymous      bool           // clients without a token get every right (dev mode only)
	TrustedProxies []netip.Prefix // stand in front: their X-Forwarded-For is believed (Edge.Networks)
	// TLS ends TLS at the edge. nil: plain sockets, with something that ends it in front.
	TLS *tls.Config

	Loops int `rule:"not negative"` // event loops; 0: one per core

	MaxHandshakes int `default:"8,192" rule:"above 0"`  // sockets that may be accepted and not yet admitted or gone
	MaxFragments  int `default:"64" rule:"above 0"`     // frames of one client message
	InboxBytes    int `default:"16 MiB" rule:"above 0"` // events waiting for one loop; more makes its subscribers lag
	MaxCalls      int `default:"1,024" rule:"above 0"`  // publishes, history reads and token checks under way at once, each kind

	HandshakeTimeout time.Duration `default:"5s" rule:"above 0s"`    // accept to complete request
	ConnectTimeout   time.Duration `default:"20s" rule:"above 0s"`   // upgrade to a good connect frame
	VerdictWait      time.Duration `default:"500ms" rule:"above 0s"` // longest wait of connected and subscribed for the router
	WriteStall       time.Duration `default:"30s" rule:"above 0s"`   // nothing could be written for so long: 4005
	CloseWait        time.Duration `default:"2s" rule:"above 0s"`    // longest wait for the client's half of a close
	CallTimeout      time.Duration `default:"5s" rule:"above 0s"`    // of a publish or a history read

	Log      *slog.Logger // nil: silent
	Registry prometheus.Registerer
}

// Default returns the settings of a production edge; ID is left to the caller.
func Default() Config { return schema.Default[Config]() }

// Validate reports every problem at once.
func (c Config) Validate() error { return schema.Validate(&c) }

// Check implements schema.Checker.
func (c *Config) Check(p *schema.Problems) {
	c.Edge.Check(p)
	if u, err := url.Parse(c.AdvertiseURL); err == nil && c.TLS != nil && c.AdvertiseURL != "" && u.Scheme != "wss" {
		p.AddValue(&c.AdvertiseURL, u, "must be a wss:// URL: this edge ends TLS")
	}
}

func (c Config) loops() int {
	if c.Loops > 0 {
		return c.Loops
	}
	return runtime.GOMAXPROCS(0)
}
