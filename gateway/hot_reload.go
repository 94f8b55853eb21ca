package gateway

import (
	"strings"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/settings"
)

// Settings are the part of a Config that can change while an edge runs (Reload).
type Settings = settings.Hot

// hot is one state of the settings; immutable.
type hot struct {
	Settings
	frames wsframe.Limits // of conns that come now
}

func newHot(s Settings, cfg *Config) *hot {
	s.DrainNotice = s.Notice(cfg.AdvertiseURL != "")
	return &hot{Settings: s, frames: wsframe.Limits{
		MaxFrameBytes: s.MaxFrameBytes, MaxMessageBytes: s.MaxFrameBytes, MaxFragments: cfg.MaxFragments,
	}}
}

// settings are those of now: lock-free, for every goroutine.
func (e *Edge) settings() *hot { return e.hot.Load() }

// Settings returns those of now.
func (e *Edge) Settings() Settings { return e.settings().Settings }

// Reload changes the settings while the edge runs, whole or, if any is wrong, not at
// all. From any goroutine.
func (e *Edge) Reload(s Settings) error {
	if err := s.Validate(); err != nil {
		e.RefusedReload(err)
		return err
	}
	e.hot.Store(newHot(s, &e.cfg))
	e.gate.Set(s)
	e.metrics.reloads.WithLabelValues(reloadDone).Inc()
	return nil
}

// RefusedReload counts and logs settings that were refused before they were any: a
// file that cannot be read, say. The old ones stay.
func (e *Edge) RefusedReload(err error) {
	e.metrics.reloads.WithLabelValues(reloadRefused).Inc()
	e.log.Error("settings are refused, the old ones stay", "err", strings.ReplaceAll(err.Error(), "\n", "; "))
}
