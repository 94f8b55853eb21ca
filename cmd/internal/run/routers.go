package run

import (
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/presence/etcd"
	"github.com/spillway-io/spillway/presence/peers"
)

// ConnectEtcd makes a client that never gives up. The caller closes it.
func ConnectEtcd(cfg Etcd, log *slog.Logger) (*clientv3.Client, error) {
	secure, err := cfg.TLS.Config("etcd.tls")
	if err != nil {
		return nil, err
	}
	ec := etcd.ClientConfig{Endpoints: cfg.Endpoints, TLS: secure, Username: cfg.User, Log: log}
	if cfg.User != "" {
		if ec.Password, err = config.Secret("etcd.password_file", cfg.PasswordFile); err != nil {
			return nil, err
		}
	}
	return etcd.NewClient(ec)
}

// NewPeers makes the connections of a node to routers; self is its id if it is one.
func NewPeers(cfg Routers, self string, view peers.View) (*peers.Peers, error) {
	pc := peers.Config{View: view, Self: self}
	secure, err := cfg.TLS.Config("routers.tls")
	if err != nil {
		return nil, err
	}
	if secure != nil {
		pc.Transport = credentials.NewTLS(secure)
	}
	if cfg.KeyFile != "" {
		key, err := config.Secret("routers.key_file", cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		pc.Call = APIKey(key)
	}
	return peers.New(pc), nil
}
