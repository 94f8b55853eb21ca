package api

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/spillway-io/spillway/proto/schema"
)

// Config of a Server. Zero fields do not mean defaults unless they say so: start from
// Default.
type Config struct {
	ID string // member id of this router; needed

	Listen     string      `key:"listen" default:"127.0.0.1:8390" rule:"host:port" doc:"The gRPC server listens at this address. Port 0 picks a port."`
	HTTPListen string      `key:"http_listen" rule:"host:port" zero:"none" example:"127.0.0.1:8380" doc:"The API as JSON over HTTP listens at this address. Port 0 picks a port."`
	HTTPTLS    *tls.Config // TLS of HTTPListen; nil: plain text

	Keys       []Key                            // API keys; empty: loopback listeners only
	Transport  credentials.TransportCredentials // TLS; nil: plain text
	Reflection bool                             // gRPC reflection (dev only)
	Trace      bool                             // OpenTelemetry spans and metrics of every call
	Options    []grpc.ServerOption              // more, for tests

	PublishDeadline time.Duration `default:"5s" rule:"above 0s"`  // longest a publish waits; a caller's shorter one counts
	ReadDeadline    time.Duration `default:"2s" rule:"above 0s"`  // longest a read for an edge or a backend waits
	CallDeadline    time.Duration `default:"15s" rule:"above 0s"` // longest any unary call may take

	// No client frame may pass 1 MiB, so an event may have half of it.
	MaxEventBytes  int           `key:"limits.max_event_bytes" default:"256 KiB" unit:"bytes" rule:"between 1 and 512 KiB" doc:"The data of an event may have so many bytes of compact JSON."`
	StreamRequests int           `default:"32" rule:"above 0"`      // unanswered requests of one PublishStream
	AnswerBytes    int           `default:"256 KiB" rule:"above 0"` // most data of one answer to an edge
	StreamAsks     int           `default:"20,000" rule:"above 0"`  // unanswered asks of one edge
	StreamBytes    int           `default:"8 MiB" rule:"above 0"`   // answers of one edge that wait to be sent
	RetrySpread    time.Duration `default:"1s" rule:"above 0s"`     // edges that were told UNAVAILABLE come back spread over this

	Now      func() time.Time      // wall clock
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
	Name   string  `key:"name"`   // for logs
	Secret string  `key:"secret"` // at least 16 bytes
	Rights []Right `key:"rights"`
}

// Default works once ID is set.
func Default() Config {
	c := schema.Default[Config]()
	c.Now = time.Now
	return c
}

// Validate reports all problems at once.
func (c *Config) Validate() error { return schema.Validate(c) }

// Check implements schema.Checker.
func (c *Config) Check(p *schema.Problems) {
	for _, listen := range []*string{&c.Listen, &c.HTTPListen} {
		if host, _, err := net.SplitHostPort(*listen); err == nil && len(c.Keys) == 0 && !loopback(host) {
			p.Add(listen, "without API keys only a loopback address is allowed")
		}
	}
	c.checkKeys(p)
}

func (c *Config) checkKeys(p *schema.Problems) {
	seen := make(map[string]bool)
	for _, k := range c.Keys {
		if k.Name == "" || seen[k.Name] {
			p.AddKey("keys", k.Name, "names must be given and differ")
		}
		seen[k.Name] = true
		if len(k.Secret) < 16 {
			p.AddKey("keys."+k.Name, schema.Hidden("(secret)"), "must have at least 16 bytes")
		}
		for _, r := range k.Rights {
			if r != RightPublish && r != RightRead && r != RightAdmin && r != RightEdge {
				p.AddKey("keys."+k.Name+".rights", r, "rights are publish, read, admin, edge")
			}
		}
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
