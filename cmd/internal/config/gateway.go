package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"time"
)

// GatewayFile is gateway.yaml. Groups marked "hot" can change while an edge runs: on
// SIGHUP, and by the cluster's settings in etcd, which stand above the file.
type GatewayFile struct {
	Node
	Listen       string `yaml:"listen"`        // host:port of the public listener; default 127.0.0.1:8400
	AdvertiseURL string `yaml:"advertise_url"` // the edge's own WebSocket URL; default none: it is behind a balancer

	Auth           Auth      `yaml:"auth"`
	Limits         Limits    `yaml:"limits"`          // hot but for send_queue_bytes
	Admission      Admission `yaml:"admission"`       // hot
	Heartbeat      Heartbeat `yaml:"heartbeat"`       // hot
	Drain          Drain     `yaml:"drain"`           // hot
	Rebalance      Rebalance `yaml:"rebalance"`       // hot
	Origins        []string  `yaml:"origins"`         // hosts of pages that may connect, besides the own; "*": any
	TLS            EdgeTLS   `yaml:"tls"`             // of listen; default none: something in front ends TLS
	TrustedProxies []string  `yaml:"trusted_proxies"` // networks or addresses whose X-Forwarded-For is believed: a leaving edge names its clients' addresses to edges that end TLS
}

// EdgeTLS lets the edge end TLS. The certificate is read again on SIGHUP; a pair that is
// no good refuses the whole reload.
type EdgeTLS struct {
	CertFile            string `yaml:"cert_file"`
	KeyFile             string `yaml:"key_file"`
	KeyExchange         string `yaml:"key_exchange"`          // hybrid (default: X25519MLKEM768 first) or x25519, a quarter cheaper
	HandshakesPerSecond int    `yaml:"handshakes_per_second"` // default: what takes 60 % of the cores, measured at start. Hot
}

// Key exchanges of an edge.
const (
	KeyExchangeHybrid = "hybrid"
	KeyExchangeX25519 = "x25519"
)

// Auth says whose tokens are good. At least one way must be named, or anonymous.
type Auth struct {
	Anonymous       bool          `yaml:"anonymous"`         // who has no token gets every right: for development
	HS256SecretFile string        `yaml:"hs256_secret_file"` // a shared secret of at least 16 bytes
	PublicKeyFiles  []string      `yaml:"public_key_files"`  // PEM; RS256, ES256 or EdDSA by the kind of the key
	JWKSURL         string        `yaml:"jwks_url"`          // http or https; read in the background
	JWKSRefresh     time.Duration `yaml:"jwks_refresh"`      // between two readings; default 5m
	MaxTTL          time.Duration `yaml:"max_ttl"`           // longest life a token may have left; default 24h
}

// Limits bound what one edge holds.
type Limits struct {
	MaxConns          int   `yaml:"max_conns"`           // default 20,000; fewer if descriptors or memory do not allow them
	MaxMemoryBytes    int64 `yaml:"max_memory_bytes"`    // of the process: soft, bounds connections by what they take; default 0: GOMEMLIMIT or the cgroup's
	Margin            int   `yaml:"margin"`              // of them, kept free of fresh clients; default 500
	MaxSubscriptions  int   `yaml:"max_subscriptions"`   // of one connection; default 1,000
	MaxFrameBytes     int   `yaml:"max_frame_bytes"`     // of one client message; default 65,536
	SendQueueBytes    int   `yaml:"send_queue_bytes"`    // queued for one connection; default 262,144. Not hot
	RefusalsPerSecond int   `yaml:"refusals_per_second"` // that say when to come back; past it resets; default 2,000
	ReloadsPerSecond  int   `yaml:"reloads_per_second"`  // state reloads of clients, cluster-wide; default 200
}

// Admission paces arrivals. Rates are those of one edge.
type Admission struct {
	Enabled               bool          `yaml:"enabled"`                  // false: whoever there is room for; default true
	FreshPerSecond        int           `yaml:"fresh_per_second"`         // clients without a ticket; default 100
	FreshBurst            int           `yaml:"fresh_burst"`              // of them at once; default 200
	ResumePerSecond       int           `yaml:"resume_per_second"`        // clients with a ticket; default 300
	ResumeBurst           int           `yaml:"resume_burst"`             // of them at once; default 30
	MovedPerSecond        int           `yaml:"moved_per_second"`         // most that leaving edges are granted; default 500
	RegionFreshPerSecond  int           `yaml:"region_fresh_per_second"`  // of all edges of the region; default 0: no such bound
	RegionResumePerSecond int           `yaml:"region_resume_per_second"` // the same for resumes; default 0
	Wait                  time.Duration `yaml:"wait"`                     // longest wait for a turn; default 3s
	MaxWaiting            int           `yaml:"max_waiting"`              // clients that wait at once; default 4,096
	Adaptive              bool          `yaml:"adaptive"`                 // lower fresh and resume under load; default true
	CriticalReserve       int           `yaml:"critical_reserve"`         // room kept for moved critical clients; default 100
	ForeignPercent        int           `yaml:"foreign_percent"`          // of the room, for another region's clients; default 80
}

// Heartbeat is how silent clients are found.
type Heartbeat struct {
	PingInterval time.Duration `yaml:"ping_interval"` // told to clients; default 30s
	PongTimeout  time.Duration `yaml:"pong_timeout"`  // told to clients; default 10s
}

// Drain is how an edge leaves.
type Drain struct {
	Deadline time.Duration `yaml:"deadline"` // from the signal to the last close; default 25s
	Notice   time.Duration `yaml:"notice"`   // of it, wait for balancers first; default 0s, 15s (at most 3/5 of the deadline) without advertise_url
}

// Rebalance is when an overfull edge hands over its surplus.
type Rebalance struct {
	Off            bool          `yaml:"off"`             // never
	Ratio          float64       `yaml:"ratio"`           // of the mean of the region's edges, above which; default 1.1
	Surplus        int           `yaml:"surplus"`         // and so many connections above it at least; default 200
	Window         time.Duration `yaml:"window"`          // in which a client is moved once at most; default 10m
	MaxAge         time.Duration `yaml:"max_age"`         // of a connection, give or take a fifth; then its client is asked to move on; default 0s: none
	BalancerCounts bool          `yaml:"balancer_counts"` // edges without advertise_url: what is in front sends newcomers where few are
}

// ProxyPrefixes are the trusted proxies; an address is a network of one.
func (f *GatewayFile) ProxyPrefixes() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range f.TrustedProxies {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, addrErr := netip.ParseAddr(text)
			if addrErr != nil {
				return nil, fmt.Errorf("trusted_proxies: %q: must be a network (10.0.0.0/8) or an address", text)
			}
			p = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// DefaultGateway works on one machine beside `spillway infra`, once auth is set.
func DefaultGateway() GatewayFile {
	return GatewayFile{
		Node: defaultNode("127.0.0.1:8500"), Listen: "127.0.0.1:8400",
		Auth: Auth{MaxTTL: 24 * time.Hour, JWKSRefresh: 5 * time.Minute},
		Limits: Limits{
			MaxConns: 20_000, Margin: 500, MaxSubscriptions: 1_000, MaxFrameBytes: 64 << 10, SendQueueBytes: 256 << 10,
			RefusalsPerSecond: 2_000, ReloadsPerSecond: 200,
		},
		Admission: Admission{
			Enabled: true, FreshPerSecond: 100, FreshBurst: 200, ResumePerSecond: 300, ResumeBurst: 30, MovedPerSecond: 500,
			Wait: 3 * time.Second, MaxWaiting: 4_096, Adaptive: true, CriticalReserve: 100, ForeignPercent: 80,
		},
		Heartbeat: Heartbeat{PingInterval: 30 * time.Second, PongTimeout: 10 * time.Second},
		Drain:     Drain{Deadline: 25 * time.Second, Notice: noticeUnset},
		Rebalance: Rebalance{Ratio: 1.1, Surplus: 200, Window: 10 * time.Minute},
	}
}

// LoadGateway reads, checks and returns gateway.yaml. The error, an *Error, has all
// problems, with those that more finds ("key: value: rule", joined).
func LoadGateway(src Source, more func(*GatewayFile) error) (*GatewayFile, error) {
	f := DefaultGateway()
	err := load(src, &f, f.Validate, func() error { return more(&f) })
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// Validate reports all problems at once. It opens the files that are named.
func (f *GatewayFile) Validate() error {
	var c checks
	c.node(&f.Node)
	c.listen("listen", f.Listen)
	c.auth(&f.Auth)
	c.pair("tls", f.TLS.CertFile, f.TLS.KeyFile)
	if !oneOf(f.TLS.KeyExchange, "", KeyExchangeHybrid, KeyExchangeX25519) {
		c.bad("tls.key_exchange", f.TLS.KeyExchange, "must be "+KeyExchangeHybrid+" or "+KeyExchangeX25519)
	}
	if _, err := f.ProxyPrefixes(); err != nil {
		c.errs = append(c.errs, err)
	}
	c.hot(f)
	return c.err()
}

func (c *checks) auth(a *Auth) {
	if !a.Anonymous && a.HS256SecretFile == "" && len(a.PublicKeyFiles) == 0 && a.JWKSURL == "" {
		c.bad("auth", "", "name hs256_secret_file, public_key_files or jwks_url; or anonymous: true, for development")
	}
	c.file("auth.hs256_secret_file", a.HS256SecretFile)
	for _, path := range a.PublicKeyFiles {
		c.file("auth.public_key_files", path)
	}
	if a.JWKSURL != "" {
		if u, err := url.Parse(a.JWKSURL); err != nil || u.Host == "" || !oneOf(u.Scheme, "http", "https") {
			c.bad("auth.jwks_url", a.JWKSURL, "must be an http:// or https:// URL")
		}
	}
	if a.JWKSRefresh < time.Second {
		c.bad("auth.jwks_refresh", a.JWKSRefresh, "must be at least 1s")
	}
	if a.MaxTTL <= 0 {
		c.bad("auth.max_ttl", a.MaxTTL, "must be above 0")
	}
}
