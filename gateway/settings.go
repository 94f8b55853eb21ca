package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/door"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// Settings are the part of a Config that can change while an edge runs (Reload). No
// socket is touched by it: conns that are held stay, also past a lower limit.
type Settings struct {
	Admission admission.Settings

	MaxConns int // connections that may be held; must be > Margin
	Margin   int // of MaxConns, kept free of fresh clients
	// MaxMemoryBytes of the process bounds the connections as well, by what they are
	// measured to take; 0: GOMEMLIMIT, or what the cgroup allows.
	MaxMemoryBytes   int64
	MaxSubscriptions int // of one connection
	MaxFrameBytes    int // of one client message; conns keep what they were told

	RefusalsPerSecond int // refusals that say when to come back; past it a reset, which costs less

	// TLSHandshakesPerSecond bounds what TLS may cost where the edge ends it; 0: what takes
	// 60 % of the cores, by the cost of one as measured at start.
	TLSHandshakesPerSecond int

	PingInterval time.Duration // told to clients; 1.5 silent ones: server ping, 2.5: closed
	PongTimeout  time.Duration // told to clients

	DrainDeadline time.Duration // from the signal to the last close
	DrainNotice   time.Duration // of it, wait for balancers first
	Rebalance     Rebalance

	ReloadPerSecond int // reloads that the cluster allows clients in a second
}

// DefaultSettings are those of a production edge.
func DefaultSettings() Settings {
	return Settings{
		Admission: admission.Default(),
		MaxConns:  20_000, Margin: 500, MaxSubscriptions: 1_000, MaxFrameBytes: 64 << 10,
		RefusalsPerSecond: 2_000,
		PingInterval:      30 * time.Second, PongTimeout: 10 * time.Second,
		DrainDeadline:   25 * time.Second,
		Rebalance:       Rebalance{Ratio: 1.1, Surplus: 200, Window: 10 * time.Minute},
		ReloadPerSecond: 200,
	}
}

// Validate reports every problem at once, as key: value: rule.
func (s Settings) Validate() error {
	errs := []error{s.Admission.Validate()}
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%s: %v: %s", field, value, rule))
	}
	if s.Margin < 0 {
		bad("limits.margin", s.Margin, "must not be negative")
	} else if s.MaxConns <= s.Margin {
		bad("limits.max_conns", s.MaxConns, fmt.Sprintf("must be more than limits.margin (%d)", s.Margin))
	}
	for _, p := range []struct {
		field string
		value int64
	}{
		{"limits.max_subscriptions", int64(s.MaxSubscriptions)},
		{"limits.refusals_per_second", int64(s.RefusalsPerSecond)},
		{"heartbeat.pong_timeout", int64(s.PongTimeout)},
		{"drain.deadline", int64(s.DrainDeadline)},
		{"limits.reloads_per_second", int64(s.ReloadPerSecond)},
	} {
		if p.value <= 0 {
			bad(p.field, p.value, "must be positive")
		}
	}
	if s.MaxMemoryBytes < 0 {
		bad("limits.max_memory_bytes", s.MaxMemoryBytes, "must not be negative")
	}
	if s.TLSHandshakesPerSecond < 0 {
		bad("tls.handshakes_per_second", s.TLSHandshakesPerSecond, "must not be negative")
	}
	if s.PingInterval < 2*time.Second {
		bad("heartbeat.ping_interval", s.PingInterval, "must be at least 2s: timers here tick once a second")
	}
	if s.MaxFrameBytes < 1<<10 || s.MaxFrameBytes > 1<<20 {
		bad("limits.max_frame_bytes", s.MaxFrameBytes, "must be between 1 KiB and 1 MiB")
	}
	if s.DrainDeadline > 0 && (s.DrainNotice < 0 || s.DrainNotice >= s.DrainDeadline) {
		bad("drain.notice", s.DrainNotice, "must be shorter than drain.deadline, which includes it")
	}
	if age := s.Rebalance.MaxAge; age < 0 {
		bad("rebalance.max_age", age, "must not be negative")
	}
	if r := s.Rebalance; !r.Off {
		if r.Ratio <= 1 {
			bad("rebalance.ratio", r.Ratio, "must be above 1")
		}
		if r.Surplus <= 0 {
			bad("rebalance.surplus", r.Surplus, "must be above 0")
		}
		if r.Window <= 0 {
			bad("rebalance.window", r.Window, "must be above 0")
		}
	}
	return errors.Join(errs...)
}

// door is what of them the door needs.
func (s *Settings) door() door.Settings {
	return door.Settings{
		Admission: s.Admission, MaxConns: s.MaxConns, Margin: s.Margin, MaxMemoryBytes: s.MaxMemoryBytes,
		RefusalsPerSecond: s.RefusalsPerSecond, TLSHandshakesPerSecond: s.TLSHandshakesPerSecond,
	}
}

// hot is one state of the settings; immutable.
type hot struct {
	Settings
	frames wsframe.Limits // of conns that come now
}

func newHot(s Settings, maxFragments int) *hot {
	return &hot{Settings: s, frames: wsframe.Limits{
		MaxFrameBytes: s.MaxFrameBytes, MaxMessageBytes: s.MaxFrameBytes, MaxFragments: maxFragments,
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
	e.hot.Store(newHot(s, e.cfg.MaxFragments))
	e.gate.Set(s.door())
	e.metrics.reloads.WithLabelValues(reloadDone).Inc()
	return nil
}

// RefusedReload counts and logs settings that were refused before they were any: a
// file that cannot be read, say. The old ones stay.
func (e *Edge) RefusedReload(err error) {
	e.metrics.reloads.WithLabelValues(reloadRefused).Inc()
	e.log.Error("settings are refused, the old ones stay", "err", strings.ReplaceAll(err.Error(), "\n", "; "))
}
