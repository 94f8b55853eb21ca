package edgenode

import (
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway"
	"github.com/spillway-io/spillway/gateway/auth"
)

// Load reads gateway.yaml and reports everything that is wrong with it at once.
func Load(src config.Source) (*config.GatewayFile, error) {
	return config.LoadGateway(src, func(f *config.GatewayFile) error {
		gc := gatewayConfig(f)
		_, err := newVerifier(&f.Auth, nil, nil)
		return errors.Join(gc.Validate(), err)
	})
}

func gatewayConfig(f *config.GatewayFile) gateway.Config {
	gc := gateway.Default()
	gc.ID, gc.Region, gc.Listen, gc.AdvertiseURL, gc.Version = f.ID, f.Region, f.Listen, f.AdvertiseURL, run.Version()
	gc.Anonymous, gc.Origins = f.Auth.Anonymous, f.Origins
	gc.TrustedProxies, _ = f.ProxyPrefixes() // Validate has told what is wrong with them
	gc.SendQueueBytes = f.Limits.SendQueueBytes
	gc.Settings = settings(f)
	gc.CloseWait = min(gc.CloseWait, max(f.Drain.Deadline/5, 100*time.Millisecond)) // a part of the deadline
	return gc
}

// serverTLS is nil for an edge with plain sockets. A new certificate is shown from the
// next handshake on.
func serverTLS(t config.EdgeTLS) (*tls.Config, *certificate, error) {
	out, err := run.ServerTLS("tls", config.ServerTLS{CertFile: t.CertFile, KeyFile: t.KeyFile})
	if out == nil || err != nil {
		return nil, nil, err
	}
	shown := new(certificate)
	shown.now.Store(&out.Certificates[0])
	out.Certificates, out.GetCertificate = nil, shown.get
	out.NextProtos = []string{"http/1.1"} // WebSocket's upgrade is HTTP/1.1's
	if t.KeyExchange == config.KeyExchangeX25519 {
		out.CurvePreferences = []tls.CurveID{tls.X25519}
	}
	return out, shown, nil
}

// settings are what can change while the edge runs.
func settings(f *config.GatewayFile) gateway.Settings {
	return gateway.Settings{
		Admission: f.AdmissionSettings(),
		MaxConns:  f.Limits.MaxConns, MaxMemoryBytes: f.Limits.MaxMemoryBytes, Margin: f.Limits.Margin,
		MaxSubscriptions: f.Limits.MaxSubscriptions, MaxFrameBytes: f.Limits.MaxFrameBytes,
		TLSHandshakesPerSecond: f.TLS.HandshakesPerSecond,
		RefusalsPerSecond:      f.Limits.RefusalsPerSecond, ReloadPerSecond: f.Limits.ReloadsPerSecond,
		PingInterval: f.Heartbeat.PingInterval, PongTimeout: f.Heartbeat.PongTimeout,
		DrainDeadline: f.Drain.Deadline, DrainNotice: f.DrainNotice(),
		Rebalance: gateway.Rebalance{
			Off: f.Rebalance.Off, Ratio: f.Rebalance.Ratio, Surplus: f.Rebalance.Surplus, Window: f.Rebalance.Window, MaxAge: f.Rebalance.MaxAge, Balancer: f.Rebalance.BalancerCounts,
		},
	}
}

// newVerifier is nil where only anonymous clients come. Errors begin with the key.
func newVerifier(a *config.Auth, log *slog.Logger, registry prometheus.Registerer) (*auth.Verifier, error) {
	secret, err := config.Secret("auth.hs256_secret_file", a.HS256SecretFile)
	if err != nil {
		return nil, err
	}
	ac := auth.Config{MaxTTL: a.MaxTTL, JWKSURL: a.JWKSURL, JWKSRefresh: a.JWKSRefresh, Log: log, Registry: registry}
	if secret != "" {
		ac.HS256 = []byte(secret)
	}
	for _, path := range a.PublicKeyFiles {
		keys, err := publicKeys(path)
		if err != nil {
			return nil, fmt.Errorf("auth.public_key_files: %s: %w", path, err)
		}
		ac.PublicKeys = append(ac.PublicKeys, keys...)
	}
	if ac.HS256 == nil && ac.PublicKeys == nil && ac.JWKSURL == "" {
		return nil, nil // Load has asked for anonymous: true
	}
	v, err := auth.New(ac)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return v, nil
}

func publicKeys(path string) ([]crypto.PublicKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.New("cannot be read")
	}
	return auth.ParsePublicKeys(text)
}
