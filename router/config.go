package router

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/operations"
)

// Config of a Router. Zero fields do not mean defaults unless they say so: start
// from Default.
type Config struct {
	ID     string // member id; needed
	Region string // a label

	// Namespaces by name. The name "default" is for channels without a colon.
	Namespaces map[string]namespace.Namespace
	// OpenNamespaces lets every name work, open to every client (dev only).
	OpenNamespaces bool

	RetryFor     time.Duration // a publish younger than this is tried again when the store fails. Default 1s
	StoreTimeout time.Duration // longest one write to the store may take. Default 3s
	StopTimeout  time.Duration // longest a stop waits for calls. Default 5s

	Committers  int   // concurrent commits: 1 for SQLite, 2 for PostgreSQL. Default 1
	BatchEvents int   // most events of one commit. Default 512
	BatchBytes  int   // most bytes of one commit, past its first event. Default 1 MiB
	QueueEvents int64 // publishes that wait; past it RESOURCE_EXHAUSTED. Default 100,000
	QueueBytes  int64 // the same in bytes; one channel may have a quarter. Default 64 MiB

	CacheBytes int64         // heads and hot tails of all channels together. Default 256 MiB
	TailAge    time.Duration // events younger than this stay in a tail. Default 60s
	TailEvents int           // the newest that stay in a tail at any age. Default 100

	OwnerRecheck time.Duration // after a change of owner heads are read again for this long. Default 60s
	PauseLimit   time.Duration // a process that stood still for longer trusts nothing that it knew. Default 2s

	HandoverWindow  time.Duration // after a change of owner others are asked for a channel for this long; 0: never. Default 30s
	HandoverWait    time.Duration // longest a channel waits for its hand. Default 1s
	HandoverGrace   time.Duration // who lost a channel and has not given it serves it on for this long. Default 3s
	HandoverTimeout time.Duration // longest the channels of one router are tried to be handed to another. Default 10s

	Reads         int           // concurrent reads of the store. Default 4
	ReadWindow    time.Duration // how long a batch of reads collects after a rest. Default 2ms
	ReadPace      time.Duration // between two batches that are not full, once a burst of five is used up. Default 200ms
	ReadRanges    int           // most channels of one batch of reads; 1: a query for each question. Default 500
	ReadBytes     int           // most bytes that one batch may ask for. Default 64 MiB
	ReadQueue     int           // reads that wait; past it UNAVAILABLE. Default 200,000
	QuietAfter    time.Duration // when the head of a quiet channel is repeated. Default 1s
	RepeatsPerSec int           // heads repeated in a second at most. Default 5,000

	TrimEvery time.Duration // how often retention runs, 0: never. Default 30s
	TrimLimit int           // most rows of one deletion. Default 1,000
	KeyWindow time.Duration // how long idempotency keys are known. Default 24h
	// ForgetAfter is after how long a channel in which nothing is stored and that
	// nobody asks for loses its row; 0: never. It must be longer than a client may be
	// away and still resume, which is a setting of edges (auth.max_ttl, 24 h; tickets
	// live an hour), by a tenth and two hours: uses are noted as seldom. Default 36h
	ForgetAfter time.Duration
	DrainDelay  time.Duration // between "draining" and the end of service. Default 300ms

	API        api.Config        // its ID, clock, log and registry are set from those here
	Operations operations.Config // its ID, clock, log, registry and HooksBefore are set from those here

	Now      func() time.Time      // wall clock that stamps events. Default time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default works once ID is set.
func Default() Config {
	return Config{
		RetryFor: time.Second, StoreTimeout: 3 * time.Second,
		StopTimeout: 5 * time.Second,
		Committers:  1, BatchEvents: 512, BatchBytes: 1 << 20,
		QueueEvents: 100_000, QueueBytes: 64 << 20,
		CacheBytes: 256 << 20, TailAge: time.Minute, TailEvents: 100,
		OwnerRecheck: time.Minute, PauseLimit: 2 * time.Second,
		HandoverWindow: 30 * time.Second, HandoverWait: time.Second, HandoverGrace: 3 * time.Second, HandoverTimeout: 10 * time.Second,
		Reads: 4, ReadWindow: 2 * time.Millisecond, ReadPace: 200 * time.Millisecond, ReadRanges: 500, ReadBytes: 64 << 20, ReadQueue: 200_000,
		QuietAfter: time.Second, RepeatsPerSec: 5_000,
		TrimEvery: 30 * time.Second, TrimLimit: 1000, KeyWindow: 24 * time.Hour, ForgetAfter: 36 * time.Hour,
		DrainDelay: 300 * time.Millisecond, API: api.Default(), Operations: operations.Default(),
		Now: time.Now,
	}
}

// problems collects everything that is wrong as "field: value: rule".
type problems []error

func (p *problems) add(field string, value any, rule string) {
	*p = append(*p, fmt.Errorf("%s: %v: %s", field, value, rule))
}

// Validate reports all problems at once; what the router's file can set is called as
// there.
func (c *Config) Validate() error {
	var p problems
	if c.ID == "" {
		p.add("id", `""`, "must not be empty")
	}
	c.validateBounds(&p)
	for name, ns := range c.Namespaces {
		p = append(p, ns.Validate(name))
	}
	return errors.Join(append(p, c.API.Validate(), c.Operations.Validate())...)
}

// api is the configuration of that package, with what it shares with the router.
func (c *Config) api() api.Config {
	a := c.API
	a.ID, a.Now, a.Log, a.Registry = c.ID, c.Now, c.Log, c.Registry
	return a
}

// operations is the configuration of that package, with what it shares with the router.
func (c *Config) operations() operations.Config {
	o := c.Operations
	o.ID, o.Now, o.Log, o.Registry = c.ID, c.Now, c.Log, c.Registry
	o.HooksBefore = c.API.CallDeadline * 2 / 3
	return o
}

func (c *Config) validateBounds(p *problems) {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"retry_for", int64(c.RetryFor)}, {"store_timeout", int64(c.StoreTimeout)},
		{"stop_timeout", int64(c.StopTimeout)},
		{"committers", int64(c.Committers)}, {"batch_events", int64(c.BatchEvents)}, {"batch_bytes", int64(c.BatchBytes)},
		{"queue_events", c.QueueEvents}, {"limits.queue_bytes", c.QueueBytes},
		{"limits.cache_bytes", c.CacheBytes}, {"tail_age", int64(c.TailAge)},
		{"handover_wait", int64(c.HandoverWait)}, {"handover_grace", int64(c.HandoverGrace)}, {"handover_timeout", int64(c.HandoverTimeout)},
		{"pause_limit", int64(c.PauseLimit)}, {"store.read_conns", int64(c.Reads)}, {"read_window", int64(c.ReadWindow)}, {"read_pace", int64(c.ReadPace)},
		{"limits.read_batch", int64(c.ReadRanges)}, {"read_bytes", int64(c.ReadBytes)}, {"read_queue", int64(c.ReadQueue)},
		{"quiet_after", int64(c.QuietAfter)}, {"repeats_per_sec", int64(c.RepeatsPerSec)},
		{"trim_limit", int64(c.TrimLimit)}, {"key_window", int64(c.KeyWindow)},
	} {
		if f.value <= 0 {
			p.add(f.name, f.value, "must be above 0")
		}
	}
	if c.TailEvents < 0 || c.OwnerRecheck < 0 || c.TrimEvery < 0 || c.DrainDelay < 0 || c.HandoverWindow < 0 {
		p.add("tail_events, owner_recheck, trim_every, drain_delay, handover_window", "", "must not be negative")
	}
	if c.ForgetAfter < 0 {
		p.add("store.forget_after", c.ForgetAfter, "must not be negative")
	}
}
