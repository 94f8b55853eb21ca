package etcd

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const (
	// A lost connection is tried again within dialTimeout + 1.2 maxDelay (its
	// jitter) < 3 s. With gRPC's default of up to 120 s, 75 s without etcd emptied a
	// list of thirty members after its return, each for 8 to 35 s.
	dialTimeout = 2 * time.Second
	maxDelay    = 800 * time.Millisecond
	// gRPC allows no less between pings, and etcd no less than 5 s. The kernel's
	// user timeout, which gRPC sets to pingTimeout, is quicker: a renewal that nobody
	// acknowledges for that long ends the connection.
	pingInterval = 10 * time.Second
	pingTimeout  = 3 * time.Second
)

// ClientConfig of NewClient.
type ClientConfig struct {
	Endpoints []string // "http://127.0.0.1:2379"; at least one
	TLS       *tls.Config
	Username  string // empty: no authentication
	Password  string
	Log       *slog.Logger // what clientv3 has to say comes at Debug; nil: silent
}

// NewClient makes a client that never gives up reconnecting. It does no I/O,
// unless there is a Username: clientv3 then fetches a token at once and fails
// after some seconds without etcd.
func NewClient(cfg ClientConfig) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    pingInterval,
		DialKeepAliveTimeout: pingTimeout,
		Logger:               zapLogger(cfg.Log),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxDelay},
				MinConnectTimeout: dialTimeout,
			}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make etcd client: %w", err)
	}
	return client, nil
}
