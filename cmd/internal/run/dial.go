package run

import (
	"context"
	"crypto/tls"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/internal/config"
)

// APIKey is sent with every call as a bearer.
type APIKey string

var _ credentials.PerRPCCredentials = APIKey("")

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (k APIKey) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(k)}, nil
}

// RequireTransportSecurity is false: a router on the loopback or in a private
// network may have keys without TLS.
func (APIKey) RequireTransportSecurity() bool { return false }

// maxAnswerBytes is the largest answer that the command line takes: 1,000 events of
// history, cut by the router, have room.
const maxAnswerBytes = 16 << 20

// Reconnect has a connection to a router tried again within 3 s, however long the router
// was away; gRPC's default waits up to two minutes.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2500 * time.Millisecond},
		MinConnectTimeout: 5 * time.Second,
	})
}

// Dial makes a connection to a router: "host:port", or "https://host:port" for TLS.
// It does no I/O. keyFile and caFile may be empty.
func Dial(server, keyFile, caFile string) (*grpc.ClientConn, error) {
	target, secure := server, false
	if rest, ok := strings.CutPrefix(server, "https://"); ok {
		target, secure = rest, true
	} else if rest, ok := strings.CutPrefix(server, "http://"); ok {
		target = rest
	}
	transport := insecure.NewCredentials()
	if secure || caFile != "" {
		cfg, err := ClientTLS{CAFile: caFile}.Config("--ca-file")
		if err != nil {
			return nil, err
		}
		if cfg == nil {
			cfg = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		transport = credentials.NewTLS(cfg)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithUserAgent("spillway-cli/" + Version()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)), Reconnect(),
	}
	if keyFile != "" {
		key, err := config.Secret("API key file", keyFile)
		if err != nil {
			return nil, &UsageError{err.Error()}
		}
		options = append(options, grpc.WithPerRPCCredentials(APIKey(key)))
	}
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimSuffix(target, "/"), options...)
	if err != nil {
		return nil, Usagef("server %q: %v", server, err)
	}
	return conn, nil
}
