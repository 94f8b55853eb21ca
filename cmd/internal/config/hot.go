package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"

	"github.com/spillway-io/spillway/gateway/admission"
)

// hotKeys can change while an edge runs; a group stands for all its keys.
var hotKeys = []string{
	"admission", "heartbeat", "drain", "rebalance",
	"limits.max_conns", "limits.max_memory_bytes", "limits.margin", "limits.max_subscriptions", "limits.max_frame_bytes",
	"limits.refusals_per_second", "limits.reloads_per_second", "tls.handshakes_per_second",
}

// settingsSource is how problems of the cluster's settings are named.
const settingsSource = "settings"

// CheckSettings says everything that is wrong with settings for all edges (YAML with
// hot keys of gateway.yaml), over the defaults. It does not know the edges' files: one
// whose own values do not go together with them refuses them all the same.
func CheckSettings(text string) error {
	f := DefaultGateway()
	_, err := f.WithSettings(text)
	return err
}

// WithSettings is the file with the cluster's settings above it. All problems are
// reported at once, in an *Error; the file itself is never changed.
func (f *GatewayFile) WithSettings(text string) (*GatewayFile, error) {
	raw, err := yaml.Parser().Unmarshal([]byte(text))
	if err != nil {
		return nil, &Error{[]Problem{{Where: settingsSource, Text: strings.Join(strings.Fields(err.Error()), " ")}}}
	}
	report := &Error{}
	add := func(key, text string) {
		if !report.has(key) {
			report.Problems = append(report.Problems, Problem{Where: settingsSource, Key: key, Text: text})
		}
	}
	with := *f // hot keys are plain values: nothing is shared
	for _, wrong := range decode(raw, &with) {
		add(wrong.key, wrong.text)
	}
	for _, key := range leaves("", raw) {
		if !hot(key) {
			add(key, "cannot change while an edge runs")
		}
	}
	var c checks
	c.hot(&with)
	for _, err := range lines(c.err()) {
		key, text, _ := strings.Cut(err.Error(), ": ")
		add(key, text)
	}
	if len(report.Problems) > 0 {
		return nil, report
	}
	return &with, nil
}

// leaves are the keys that hold values.
func leaves(prefix string, raw map[string]any) []string {
	var keys []string
	for name, value := range raw {
		if group, ok := value.(map[string]any); ok {
			keys = append(keys, leaves(prefix+name+".", group)...)
		} else {
			keys = append(keys, prefix+name)
		}
	}
	slices.Sort(keys)
	return keys
}

func hot(key string) bool {
	return slices.ContainsFunc(hotKeys, func(h string) bool { return key == h || strings.HasPrefix(key, h+".") })
}

// Cold is the file without what can change while an edge runs: two files with equal
// cold parts differ in nothing that needs a restart.
func (f *GatewayFile) Cold() GatewayFile {
	cold := *f
	cold.Admission, cold.Heartbeat, cold.Drain, cold.Rebalance = Admission{}, Heartbeat{}, Drain{}, Rebalance{}
	cold.Limits = Limits{SendQueueBytes: f.Limits.SendQueueBytes}
	if cold.TLS.HandshakesPerSecond = 0; f.TLS.CertFile != "" {
		cold.TLS.CertFile, cold.TLS.KeyFile = "some", "some" // another pair is read on SIGHUP; to begin or end TLS is not
	}
	return cold
}

// AdmissionSettings are the admission keys as the edge takes them.
func (f *GatewayFile) AdmissionSettings() admission.Settings {
	a := &f.Admission
	return admission.Settings{
		Off: !a.Enabled, FreshPerSecond: a.FreshPerSecond, FreshBurst: a.FreshBurst,
		ResumePerSecond: a.ResumePerSecond, ResumeBurst: a.ResumeBurst, MovedPerSecond: a.MovedPerSecond,
		RegionFreshPerSecond: a.RegionFreshPerSecond, RegionResumePerSecond: a.RegionResumePerSecond,
		Wait: a.Wait, MaxWaiting: a.MaxWaiting, Adaptive: a.Adaptive,
		CriticalReserve: a.CriticalReserve, ForeignPercent: a.ForeignPercent,
	}
}

// noticeUnset: the file does not say; no duration that a file can have.
const noticeUnset = time.Duration(-1 << 63)

// noticeBehindOne is what a balancer may take to see that an edge is not ready: two
// checks of 5 s, and some.
const noticeBehindOne = 15 * time.Second

// DrainNotice is how long a drain waits for balancers: an edge with an address of its
// own need not, one behind a balancer must outlast its health checks.
func (f *GatewayFile) DrainNotice() time.Duration {
	switch {
	case f.Drain.Notice != noticeUnset:
		return f.Drain.Notice
	case f.AdvertiseURL != "":
		return 0
	}
	return min(noticeBehindOne, f.Drain.Deadline*3/5)
}

// hot checks what can change while an edge runs.
func (c *checks) hot(f *GatewayFile) {
	c.errs = append(c.errs, lines(f.AdmissionSettings().Validate())...)
	l := &f.Limits
	if l.Margin < 0 {
		c.bad("limits.margin", l.Margin, "must not be negative")
	} else if l.MaxConns <= l.Margin {
		c.bad("limits.max_conns", l.MaxConns, fmt.Sprintf("must be more than limits.margin (%d)", l.Margin))
	}
	if l.MaxMemoryBytes < 0 {
		c.bad("limits.max_memory_bytes", l.MaxMemoryBytes, "must not be negative")
	}
	if l.MaxFrameBytes < 1<<10 || l.MaxFrameBytes > 1<<20 {
		c.bad("limits.max_frame_bytes", l.MaxFrameBytes, "must be between 1 KiB and 1 MiB")
	}
	for _, p := range []struct {
		field string
		value int
	}{
		{"limits.max_subscriptions", l.MaxSubscriptions}, {"limits.refusals_per_second", l.RefusalsPerSecond},
		{"limits.reloads_per_second", l.ReloadsPerSecond},
	} {
		if p.value <= 0 {
			c.bad(p.field, p.value, "must be above 0")
		}
	}
	if t := f.Heartbeat.PongTimeout; t <= 0 {
		c.bad("heartbeat.pong_timeout", t, "must be above 0")
	}
	if t := f.Drain.Deadline; t <= 0 {
		c.bad("drain.deadline", t, "must be above 0")
	}
	if f.TLS.HandshakesPerSecond < 0 {
		c.bad("tls.handshakes_per_second", f.TLS.HandshakesPerSecond, "must not be negative")
	}
	if f.Heartbeat.PingInterval < 2*time.Second {
		c.bad("heartbeat.ping_interval", f.Heartbeat.PingInterval, "must be at least 2s")
	}
	if n := f.Drain.Notice; n != noticeUnset && f.Drain.Deadline > 0 && (n < 0 || n >= f.Drain.Deadline) {
		c.bad("drain.notice", f.Drain.Notice, "must be shorter than drain.deadline, which includes it")
	}
	if f.Rebalance.MaxAge < 0 {
		c.bad("rebalance.max_age", f.Rebalance.MaxAge, "must not be negative")
	}
	if r := f.Rebalance; !r.Off {
		if r.Ratio <= 1 {
			c.bad("rebalance.ratio", r.Ratio, "must be above 1")
		}
		if r.Surplus <= 0 {
			c.bad("rebalance.surplus", r.Surplus, "must be above 0")
		}
		if r.Window <= 0 {
			c.bad("rebalance.window", r.Window, "must be above 0")
		}
	}
}
