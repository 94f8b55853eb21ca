// Package natsserver runs a NATS server inside this process: for `spillway dev`,
// `spillway infra` and tests. Production binaries do not link it.
package natsserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// PortTakenError says that somebody listens there already.
type PortTakenError struct{ Addr string }

func (e *PortTakenError) Error() string { return "nats: " + e.Addr + " is already in use" }

// Server is a running NATS server.
type Server struct{ nats *server.Server }

// Start returns when the server takes connections on 127.0.0.1 (port 0 picks one).
func Start(ctx context.Context, port int) (*Server, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if port == 0 {
		port = server.RANDOM_PORT
	} else if err := free(ctx, addr); err != nil {
		return nil, err // the server itself would end the process
	}
	n, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true, MaxPayload: 1 << 20,
		WriteDeadline: 10 * time.Second, MaxPending: 64 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("start nats: %w", err)
	}
	n.Start()
	if !n.ReadyForConnections(10 * time.Second) {
		n.Shutdown()
		return nil, errors.New("start nats: not ready after 10s")
	}
	return &Server{n}, nil
}

func free(ctx context.Context, addr string) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return &PortTakenError{addr}
	}
	if err != nil {
		return fmt.Errorf("start nats: %w", err)
	}
	return ln.Close()
}

// URL is where clients connect.
func (s *Server) URL() string { return "nats://" + s.nats.Addr().String() }

// Port is that of clients.
func (s *Server) Port() int { return s.nats.Addr().(*net.TCPAddr).Port }

// Close ends it and waits.
func (s *Server) Close() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
}
