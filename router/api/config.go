package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Config of a Server. Zero fields do not mean defaults unless they say so: start from
// Default.
type Config struct {
	ID     string // member id of this router; needed
	Listen string // host:port of the gRPC server; port 0 picks one. Default 127.0.0.1:8390

	HTTPListen string      // host:port of the API over HTTP; port 0 picks one. Default "": none
	HTTPTLS    *tls.Config // TLS of HTTPListen; nil: plain text

	Keys       []Key                            // API keys; empty: loopback listeners only
	Transport  credentials.TransportCredentials // TLS; nil: plain text
	Reflection bool                             // gRPC reflection (dev only)
	Trace      bool                             // OpenTelemetry spans and metrics of every call
	Options    []grpc.ServerOption              // more, for tests

	PublishDeadline time.Duration // longest a publish waits; a caller's shorter one counts. Default 5s
	ReadDeadline    time.Duration // longest a read for an edge or a backend waits. Default 2s
	CallDeadline    time.Duration // longest any unary call may take. Default 15s

	MaxEventBytes  int           // of data, compact. Default 256 KiB, at most 512 KiB
	StreamRequests int           // unanswered requests of one PublishStream. Default 32
	AnswerBytes    int           // most data of one answer to an edge. Default 256 KiB
	StreamAsks     int           // unanswered asks of one edge. Default 20,000
	StreamBytes    int           // answers of one edge that wait to be sent. Default 8 MiB
	RetrySpread    time.Duration // edges that were told UNAVAILABLE come back spread over this. Default 1s

	Now      func() time.Time      // wall clock. Default time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Right is what an API key may do.
type Right string

// The rights.
const (
	RightPublish Right = "publish" // PublisherService
	RightRead    Right = "read"    // HistoryService
	RightAdmin   Right = "admin"   // AdminService
	RightEdge    Right = "edge"    // EdgeService: edges, and routers that forward
)

// Key is one API key: who sends `authorization: Bearer SECRET` has its rights.
type Key struct {
	Name   string // for logs
	Secret string // at least 16 bytes
	Rights []Right
}

// Default works once ID is set.
func Default() Config {
	return Config{
		Listen:          "127.0.0.1:8390",
		PublishDeadline: 5 * time.Second, ReadDeadline: 2 * time.Second, CallDeadline: 15 * time.Second,
		MaxEventBytes: 256 << 10, StreamRequests: 32, AnswerBytes: 256 << 10, StreamAsks: 20_000, StreamBytes: 8 << 20,
		RetrySpread: time.Second, Now: time.Now,
	}
}

// problems collects everything that is wrong as "field: value: rule".
type problems []error

func (p *problems) add(field string, value any, rule string) {
	*p = append(*p, fmt.Errorf("%s: %v: %s", field, value, rule))
}

// Validate reports all problems at once; what the router's file can set is called as
// there.
func (c *Config) Validate() error {
	var p problems
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"publish_deadline", int64(c.PublishDeadline)}, {"read_deadline", int64(c.ReadDeadline)}, {"call_deadline", int64(c.CallDeadline)},
		{"limits.max_event_bytes", int64(c.MaxEventBytes)}, {"stream_requests", int64(c.StreamRequests)}, {"answer_bytes", int64(c.AnswerBytes)},
		{"stream_asks", int64(c.StreamAsks)}, {"stream_bytes", int64(c.StreamBytes)}, {"retry_spread", int64(c.RetrySpread)},
	} {
		if f.value <= 0 {
			p.add(f.name, f.value, "must be above 0")
		}
	}
	if c.MaxEventBytes > 512<<10 {
		p.add("limits.max_event_bytes", c.MaxEventBytes, "at most 512 KiB: no client frame may pass 1 MiB")
	}
	c.validateListen("listen", c.Listen, &p)
	if c.HTTPListen != "" {
		c.validateListen("http_listen", c.HTTPListen, &p)
	}
	c.validateKeys(&p)
	return errors.Join(p...)
}

func (c *Config) validateKeys(p *problems) {
	seen := make(map[string]bool)
	for _, k := range c.Keys {
		if k.Name == "" || seen[k.Name] {
			p.add("keys", k.Name, "names must be given and differ")
		}
		seen[k.Name] = true
		if len(k.Secret) < 16 {
			p.add("keys."+k.Name, "(secret)", "must have at least 16 bytes")
		}
		for _, r := range k.Rights {
			if r != RightPublish && r != RightRead && r != RightAdmin && r != RightEdge {
				p.add("keys."+k.Name, r, "rights are publish, read, admin, edge")
			}
		}
	}
}

func (c *Config) validateListen(field, address string, p *problems) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		p.add(field, address, "must be host:port")
	} else if len(c.Keys) == 0 && !loopback(host) {
		p.add(field, address, "without API keys only a loopback address is allowed")
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
