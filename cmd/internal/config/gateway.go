package config

import (
	"net/url"
	"time"
)

// GatewayFile is gateway.yaml. Accepted and not acted on in this version: admission,
// trusted_proxies, drain.notice. Refused, since ignoring it would not be safe: tls
// (put something that ends TLS in front).
type GatewayFile struct {
	Node
	Listen       string `yaml:"listen"`        // host:port of the public listener; default 127.0.0.1:8400
	AdvertiseURL string `yaml:"advertise_url"` // the edge's own WebSocket URL; default none: it is behind a balancer

	Auth           Auth      `yaml:"auth"`
	Limits         Limits    `yaml:"limits"`
	Admission      Admission `yaml:"admission"`
	Drain          Drain     `yaml:"drain"`
	Origins        []string  `yaml:"origins"` // hosts of pages that may connect, besides the own; "*": any
	TLS            ServerTLS `yaml:"tls"`
	TrustedProxies []string  `yaml:"trusted_proxies"` // addresses whose X-Forwarded-For is believed
}

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
	MaxConns         int `yaml:"max_conns"`         // default 20,000
	Margin           int `yaml:"margin"`            // of them, kept free of fresh clients; default 500
	MaxSubscriptions int `yaml:"max_subscriptions"` // of one connection; default 1,000
	MaxFrameBytes    int `yaml:"max_frame_bytes"`   // of one client message; default 65,536
	SendQueueBytes   int `yaml:"send_queue_bytes"`  // queued for one connection; default 262,144
}

// Admission paces arrivals. Not acted on in this version.
type Admission struct {
	FreshPerSecond  int           `yaml:"fresh_per_second"`  // default 100
	FreshBurst      int           `yaml:"fresh_burst"`       // default 200
	ResumePerSecond int           `yaml:"resume_per_second"` // default 300
	MovedPerSecond  int           `yaml:"moved_per_second"`  // default 500
	Wait            time.Duration `yaml:"wait"`              // longest wait for a turn; default 3s
	Adaptive        bool          `yaml:"adaptive"`          // default true
}

// Drain is how an edge leaves.
type Drain struct {
	Deadline time.Duration `yaml:"deadline"` // from the signal to the last close; default 25s
	Notice   time.Duration `yaml:"notice"`   // wait for balancers first; default 0s. Not acted on in this version
}

// DefaultGateway works on one machine beside `spillway infra`, once auth is set.
func DefaultGateway() GatewayFile {
	return GatewayFile{
		Node: defaultNode("127.0.0.1:8500"), Listen: "127.0.0.1:8400",
		Auth:   Auth{MaxTTL: 24 * time.Hour, JWKSRefresh: 5 * time.Minute},
		Limits: Limits{MaxConns: 20_000, Margin: 500, MaxSubscriptions: 1_000, MaxFrameBytes: 64 << 10, SendQueueBytes: 256 << 10},
		Admission: Admission{
			FreshPerSecond: 100, FreshBurst: 200, ResumePerSecond: 300, MovedPerSecond: 500, Wait: 3 * time.Second, Adaptive: true,
		},
		Drain: Drain{Deadline: 25 * time.Second},
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
	if f.TLS != (ServerTLS{}) {
		c.bad("tls", f.TLS.CertFile, "this version does not end TLS at the edge: put a proxy or balancer in front")
	}
	a := f.Admission
	for _, p := range []struct {
		field string
		value int
	}{
		{"admission.fresh_per_second", a.FreshPerSecond}, {"admission.fresh_burst", a.FreshBurst},
		{"admission.resume_per_second", a.ResumePerSecond}, {"admission.moved_per_second", a.MovedPerSecond},
	} {
		if p.value <= 0 {
			c.bad(p.field, p.value, "must be above 0")
		}
	}
	if a.Wait < 0 {
		c.bad("admission.wait", a.Wait, "must not be negative")
	}
	if f.Drain.Notice < 0 || f.Drain.Notice >= f.Drain.Deadline {
		c.bad("drain.notice", f.Drain.Notice, "must be shorter than drain.deadline, which includes it")
	}
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
