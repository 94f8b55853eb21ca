package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/door"
)

// Config is what an edge is told. Default gives a working one.
type Config struct {
	ID           string // member id; told to clients as `node`
	Cluster      string // name of the cluster (its etcd prefix): tickets are good in one only
	Region       string // label; told to clients
	Listen       string // host:port of the public listener; port 0 picks one
	AdvertiseURL string // WebSocket URL clients may be sent to; "": none
	Version      string // told in logs only

	Loops     int      // event loops; 0: one per core
	Anonymous bool     // clients without a token get every right (dev mode only)
	Origins   []string // allowed Origin hosts besides the own one; "*": any

	// TrustedProxies stand in front: their X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix

	// TLS ends TLS at the edge. nil: plain sockets, with something that ends it in front.
	TLS *tls.Config

	Settings // what Reload can change

	MaxHandshakes  int // sockets that may be accepted and not yet admitted or gone
	MaxFragments   int // frames of one client message
	SendQueueBytes int // events queued for one connection; more makes it lag
	InboxBytes     int // events waiting for one loop; more makes its subscribers lag
	MaxCalls       int // publishes, history reads and token checks under way at once, each kind

	HandshakeTimeout time.Duration // accept to complete request
	ConnectTimeout   time.Duration // upgrade to a good connect frame
	VerdictWait      time.Duration // longest wait of connected and subscribed for the router
	WriteStall       time.Duration // nothing could be written for so long: 4005
	CloseWait        time.Duration // longest wait for the client's half of a close
	CallTimeout      time.Duration // of a publish or a history read

	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Default returns the settings of a production edge; ID is left to the caller.
func Default() Config {
	return Config{
		Region:           "default",
		Listen:           "127.0.0.1:8400",
		Settings:         DefaultSettings(),
		MaxHandshakes:    8_192,
		MaxFragments:     64,
		SendQueueBytes:   256 << 10,
		InboxBytes:       16 << 20,
		MaxCalls:         1_024,
		HandshakeTimeout: 5 * time.Second,
		ConnectTimeout:   20 * time.Second,
		VerdictWait:      500 * time.Millisecond,
		WriteStall:       30 * time.Second,
		CloseWait:        2 * time.Second,
		CallTimeout:      5 * time.Second,
		Log:              slog.New(slog.DiscardHandler),
	}
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%s: %v: %s", field, value, rule))
	}
	if c.ID == "" {
		bad("id", `""`, "must be set")
	}
	if c.Listen == "" {
		bad("listen", `""`, "must be host:port")
	}
	if c.AdvertiseURL != "" {
		u, err := url.Parse(c.AdvertiseURL)
		switch {
		case err != nil, u.Scheme != "ws" && u.Scheme != "wss", u.Host == "":
			bad("advertise_url", c.AdvertiseURL, "must be a ws:// or wss:// URL")
		case c.TLS != nil && u.Scheme != "wss":
			bad("advertise_url", c.AdvertiseURL, "must be a wss:// URL: this edge ends TLS")
		case !strings.HasSuffix(u.Path, door.PathWS):
			bad("advertise_url", c.AdvertiseURL, "must end in "+door.PathWS)
		}
	}
	positive := []struct {
		field string
		value int64
	}{
		{"limits.max_handshakes", int64(c.MaxHandshakes)},
		{"limits.max_fragments", int64(c.MaxFragments)},
		{"limits.inbox_bytes", int64(c.InboxBytes)},
		{"limits.max_calls", int64(c.MaxCalls)},
		{"handshake_timeout", int64(c.HandshakeTimeout)},
		{"connect_timeout", int64(c.ConnectTimeout)},
		{"verdict_wait", int64(c.VerdictWait)},
		{"write_stall", int64(c.WriteStall)},
		{"close_wait", int64(c.CloseWait)},
		{"call_timeout", int64(c.CallTimeout)},
	}
	for _, p := range positive {
		if p.value <= 0 {
			bad(p.field, p.value, "must be positive")
		}
	}
	if c.SendQueueBytes < 4<<10 {
		bad("limits.send_queue_bytes", c.SendQueueBytes, "must be at least 4 KiB")
	}
	if c.Loops < 0 {
		bad("loops", c.Loops, "must not be negative")
	}
	return errors.Join(append(errs, c.Settings.Validate())...)
}

func (c Config) loops() int {
	if c.Loops > 0 {
		return c.Loops
	}
	return runtime.GOMAXPROCS(0)
}
