// Package gatewayfile is gateway.yaml: the settings of an edge and of its node in one
// struct, each declared by the package that uses it.
//
// The mains and package edgenode load it; routers check with it what an operator puts for
// all edges (CheckSettings). No goroutine, no state.
//
// Left out on purpose: how files, environment and flags are read (cmd/internal/config), and
// what an edge makes of the settings (gateway, edgenode).
package gatewayfile

import (
	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/proto/schema"
)

// File is gateway.yaml.
type File struct {
	run.Node
	settings.Edge
	Auth Auth `key:"auth"`
	TLS  TLS  `key:"tls"`
}

// TLS lets the edge end TLS. Without a certificate something in front ends it. A pair that
// is no good refuses the whole reload.
type TLS struct {
	run.Pair    `hot:"file"`
	KeyExchange string `key:"key_exchange" default:"hybrid" oneof:"hybrid, x25519" doc:"The edge prefers this key exchange: hybrid is X25519MLKEM768, and x25519 costs a quarter less."`
}

// KeyExchangeX25519 is the key exchange that is not the default.
const KeyExchangeX25519 = "x25519"

// Check implements schema.Checker.
func (t *TLS) Check(p *schema.Problems) { t.Complete(t, p) }

// Default works on one machine beside `spillway infra`, once auth is set.
func Default() File {
	f := schema.Default[File]()
	f.Node = run.DefaultNode("127.0.0.1:8500")
	return f
}

// Settings lists all keys.
func Settings() []schema.Setting {
	f := Default()
	return schema.Settings(&f)
}

// Load reads gateway.yaml and reports everything that is wrong with it at once, in a
// *config.Error.
func Load(src config.Source) (*File, error) {
	f := Default()
	err := config.Load(src, &f, func() error {
		if schema.Validate(&f.Auth.Config) != nil {
			return nil // told already
		}
		_, err := f.Auth.Verifier(nil, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// CheckSettings says everything that is wrong with settings for all edges (YAML with
// hot keys of gateway.yaml), over the defaults. It does not know the edges' files: one
// whose own values do not go together with them refuses them all the same.
func CheckSettings(text string) error {
	f := Default()
	_, err := f.WithSettings(text)
	return err
}

// WithSettings is the file with the cluster's settings above it. All problems are
// reported at once, in a *config.Error; the file itself is never changed.
func (f *File) WithSettings(text string) (*File, error) {
	with := *f // hot keys are plain values: nothing is shared
	if err := config.Overlay(&with, text, with.Hot.Validate); err != nil {
		return nil, err
	}
	return &with, nil
}

// Waiting lists the keys that differ in another reading of the file and that cannot change
// while an edge runs: they wait for its next start. Another certificate is read on SIGHUP;
// to begin or end TLS is not.
func (f *File) Waiting(next *File) []string {
	keys := schema.Changed(f, next)
	if (f.TLS.CertFile == "") != (next.TLS.CertFile == "") {
		keys = append(keys, "tls.cert_file")
	}
	return keys
}
