package edgenode

import (
	"crypto/tls"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway"
)

func gatewayConfig(f *gatewayfile.File) gateway.Config {
	gc := gateway.Default()
	gc.Identity, gc.Edge, gc.Cluster, gc.Version = f.Identity, f.Edge, f.Etcd.Prefix, run.Version()
	gc.Anonymous, gc.TrustedProxies = f.Auth.Anonymous, f.Networks()
	gc.CloseWait = min(gc.CloseWait, max(f.DrainDeadline/5, 100*time.Millisecond)) // a part of the deadline
	return gc
}

// serverTLS is nil for an edge with plain sockets. A new certificate is shown from the
// next handshake on.
func serverTLS(t gatewayfile.TLS) (*tls.Config, *certificate, error) {
	out, err := run.ServerTLS{Pair: t.Pair}.Config("tls")
	if out == nil || err != nil {
		return nil, nil, err
	}
	shown := new(certificate)
	shown.now.Store(&out.Certificates[0])
	out.Certificates, out.GetCertificate = nil, shown.get
	out.NextProtos = []string{"http/1.1"} // WebSocket's upgrade is HTTP/1.1's
	if t.KeyExchange == gatewayfile.KeyExchangeX25519 {
		out.CurvePreferences = []tls.CurveID{tls.X25519}
	}
	return out, shown, nil
}
