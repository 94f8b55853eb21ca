package edgenode

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/gateway"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// agreed is what the cluster agreed on (control.Control).
type agreed interface {
	Settings() *gatewayv1.Settings
	Changed() <-chan struct{}
}

// reloadable is an edge whose settings can change.
type reloadable interface {
	Reload(gateway.Settings) error
	RefusedReload(error)
}

// reloader keeps an edge's settings: its file, read again on SIGHUP, below what the
// cluster agreed on. A change is taken whole or not at all.
type reloader struct {
	// immutable
	edge   reloadable
	agreed agreed
	log    *slog.Logger
	read   func() (*gatewayfile.File, error) // reads the file again; nil: there is none

	certificate *certificate // nil: plain sockets

	// owned by run
	file *gatewayfile.File // the last good one
	text string            // the last good settings of the cluster
	seen string            // the last ones, good or not
}

// run takes changes until ctx ends.
func (r *reloader) run(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	if r.read != nil {
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	return r.follow(ctx, hangups)
}

func (r *reloader) follow(ctx context.Context, hangups <-chan os.Signal) error {
	for {
		changed := r.agreed.Changed() // before reading: no change is missed
		if text := r.agreed.Settings().GetYaml(); text != r.seen {
			r.seen = text
			r.take(r.file, text, "etcd")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-hangups:
			r.hangup()
		}
	}
}

// hangup reads the file again.
func (r *reloader) hangup() {
	file, err := r.read()
	if err != nil {
		r.edge.RefusedReload(err)
		return
	}
	pair, err := r.certificate.load(file.TLS)
	if err != nil {
		r.edge.RefusedReload(err)
		return
	}
	if keys := r.file.Waiting(file); len(keys) > 0 {
		r.log.Warn("keys that cannot change while an edge runs have changed: they wait for its next start", "keys", keys)
	}
	if r.take(file, r.text, "file") && pair != nil {
		r.certificate.now.Store(pair)
		r.log.Info("the certificate is read again", "not_after", pair.Leaf.NotAfter)
	}
}

// take puts the cluster's settings above a file and gives the edge the result; false:
// it was refused.
func (r *reloader) take(file *gatewayfile.File, text, from string) bool {
	with, err := file.WithSettings(text)
	if err != nil {
		r.edge.RefusedReload(err)
		return false
	}
	if r.edge.Reload(with.Hot) != nil {
		return false // the edge has counted and logged it
	}
	r.file, r.text = file, text
	r.log.Info("settings are changed", "from", from)
	return true
}
