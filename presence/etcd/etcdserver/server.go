// Package etcdserver runs an etcd inside this process: for `spillway dev`,
// `spillway infra` and tests. Production binaries do not link it.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Config of a single-node etcd.
type Config struct {
	Dir  string // data; kept
	Port int    // of clients, on 127.0.0.1; 0 picks one
}

// PortTakenError says that somebody listens there already.
type PortTakenError struct{ Addr string }

func (e *PortTakenError) Error() string { return "etcd: " + e.Addr + " is already in use" }

// Server is a running etcd.
type Server struct{ etcd *embed.Etcd }

// Start returns when the server answers, or ctx ends. Elections are quick: the only
// node has nobody to wait for (up to 1 s with the defaults).
func Start(ctx context.Context, cfg Config) (*Server, error) {
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.TickMs, c.ElectionMs = 10, 100
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "1h"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Port))
	client, peer := url.URL{Scheme: "http", Host: addr}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd, err := embed.StartEtcd(c)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &PortTakenError{addr}
	}
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	s := &Server{etcd}
	select {
	case <-etcd.Server.ReadyNotify():
		return s, nil
	case err := <-etcd.Err():
		s.Close()
		return nil, fmt.Errorf("start etcd: %w", err)
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("start etcd: %w", ctx.Err())
	case <-time.After(30 * time.Second):
		s.Close()
		return nil, errors.New("start etcd: not ready after 30s")
	}
}

// Endpoint is the URL for clients.
func (s *Server) Endpoint() string { return "http://" + s.etcd.Clients[0].Addr().String() }

// Port is that of clients.
func (s *Server) Port() int { return s.etcd.Clients[0].Addr().(*net.TCPAddr).Port }

// Close ends it; the data stays.
func (s *Server) Close() { s.etcd.Close() }
