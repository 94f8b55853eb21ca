package run

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-io/spillway/cmd/internal/config"
)

const (
	minReconnect = 250 * time.Millisecond
	maxReconnect = 2 * time.Second
	// What is published while the bus is away waits in memory, so that a short
	// absence needs no repair.
	reconnectBufBytes = 8 << 20
)

// ConnectNATS makes a connection that never gives up (nats.go's default does, after
// 120 s) and does not wait for the first success. The caller closes it.
func ConnectNATS(cfg NATS, name string, log *slog.Logger) (*nats.Conn, error) {
	log = log.With("component", "nats")
	options := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.Timeout(2 * time.Second),
		nats.ReconnectBufSize(reconnectBufBytes), nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ConnectHandler(func(c *nats.Conn) { log.Info("connected", "server", c.ConnectedUrlRedacted()) }),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info("connected again", "server", c.ConnectedUrlRedacted()) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: we closed it
				log.Warn("connection lost", "err", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if !errors.Is(err, nats.ErrSlowConsumer) { // counted by its subscriber
				log.Warn("nats", "err", err)
			}
		}),
	}
	if cfg.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(cfg.CredentialsFile))
	}
	if cfg.User != "" {
		password, err := config.Secret("nats.password_file", cfg.PasswordFile)
		if err != nil {
			return nil, err
		}
		options = append(options, nats.UserInfo(cfg.User, password))
	}
	secure, err := cfg.TLS.Config("nats.tls")
	if err != nil {
		return nil, err
	}
	if secure != nil {
		options = append(options, nats.Secure(secure))
	}
	conn, err := nats.Connect(strings.Join(cfg.URLs, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connect to nats: %w", err)
	}
	return conn, nil
}

// reconnectDelay doubles up to the most, and of that a random part: connections that
// were lost together do not come back together.
func reconnectDelay(attempts int) time.Duration {
	d := min(minReconnect<<min(max(attempts-1, 0), 8), maxReconnect)
	return d/2 + rand.N(d/2)
}
