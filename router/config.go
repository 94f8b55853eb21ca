package router

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/backfill"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/handover"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/operations"
	"github.com/spillway-io/spillway/router/retention"
	"github.com/spillway-io/spillway/router/table"
	"github.com/spillway-io/spillway/router/views"
	"github.com/spillway-io/spillway/router/writer"
)

// Config of a Router. Zero fields do not mean defaults unless they say so: start
// from Default.
type Config struct {
	ID     string // member id; needed
	Region string // a label

	// Namespaces by name. The name "default" is for channels without a colon.
	Namespaces map[string]namespace.Namespace `key:"namespaces"`
	// OpenNamespaces lets every name work, open to every client (dev only).
	OpenNamespaces bool

	RetryFor     time.Duration `default:"1s" rule:"above 0s"`   // a publish younger than this is tried again when the store fails
	RetryWait    time.Duration `default:"50ms" rule:"above 0s"` // after the first failure of the store; it doubles up to twenty times
	StoreTimeout time.Duration `default:"3s" rule:"above 0s"`   // longest one write to the store may take
	StopTimeout  time.Duration `default:"5s" rule:"above 0s"`   // longest a stop waits for calls

	Committers  int   `default:"1" rule:"above 0"`       // concurrent commits: 1 for SQLite, 2 for PostgreSQL
	BatchEvents int   `default:"512" rule:"above 0"`     // most events of one commit
	BatchBytes  int   `default:"1 MiB" rule:"above 0"`   // most bytes of one commit, past its first event
	QueueEvents int64 `default:"100,000" rule:"above 0"` // publishes that wait; past it RESOURCE_EXHAUSTED
	QueueBytes  int64 `key:"limits.queue_bytes" default:"64 MiB" unit:"bytes" rule:"above 0" doc:"Publishes of so many bytes wait for the store. One channel may have a quarter of it."`

	Shards     int           `rule:"not negative"` // goroutines that own the channels; 0: one for two cores, at most 16
	CacheBytes int64         `key:"limits.cache_bytes" default:"256 MiB" unit:"bytes" rule:"above 0" doc:"Heads and hot tails of all channels together take so much memory."`
	TailAge    time.Duration `default:"1m" rule:"above 0s"`      // events younger than this stay in a tail
	TailEvents int           `default:"100" rule:"not negative"` // the newest that stay in a tail at any age

	OwnerRecheck time.Duration `default:"1m" rule:"not negative"` // after a change of owner heads are read again for this long
	PauseLimit   time.Duration `default:"2s" rule:"above 0s"`     // a process that stood still for longer trusts nothing that it knew

	HandoverWindow  time.Duration `default:"30s" rule:"not negative"` // after a change of owner others are asked for a channel for this long; 0: never
	HandoverWait    time.Duration `default:"1s" rule:"above 0s"`      // longest a channel waits for its hand
	HandoverGrace   time.Duration `default:"3s" rule:"above 0s"`      // who lost a channel and has not given it serves it on for this long
	HandoverTimeout time.Duration `default:"10s" rule:"above 0s"`     // longest the channels of one router are tried to be handed to another

	Reads         int           `default:"4" rule:"above 0"`      // concurrent reads of the store
	ReadWindow    time.Duration `default:"2ms" rule:"above 0s"`   // how long a batch of reads collects after a rest
	ReadPace      time.Duration `default:"200ms" rule:"above 0s"` // between two batches that are not full, once a burst of five is used up
	ReadRanges    int           `key:"limits.read_batch" default:"500" unit:"questions" rule:"above 0" doc:"So many questions of edges go into one query of the store. With 1 each question has a query of its own, which is for comparisons."`
	ReadBytes     int           `default:"64 MiB" rule:"above 0"`  // most bytes that one batch may ask for
	ReadQueue     int           `default:"200,000" rule:"above 0"` // reads that wait; past it UNAVAILABLE
	QuietAfter    time.Duration `default:"1s" rule:"above 0s"`     // when the head of a quiet channel is repeated
	RepeatsPerSec int           `default:"5,000" rule:"above 0"`   // heads repeated in a second at most

	TrimEvery time.Duration `default:"30s" rule:"not negative"` // how often retention runs, 0: never
	TrimLimit int           `default:"1,000" rule:"above 0"`    // most rows of one deletion
	KeyWindow time.Duration `default:"24h" rule:"above 0s"`     // how long idempotency keys are known
	// ForgetAfter must be longer than a client may be away and still resume, which is a
	// setting of edges (auth.max_ttl; tickets live an hour), by a tenth and two hours: uses
	// are noted as seldom.
	ForgetAfter time.Duration `key:"store.forget_after" default:"36h" rule:"not negative" must:"must be 0 or at least 4h" zero:"never" doc:"A channel in which nothing is stored loses its row when nobody has asked for it for so long, and comes back in a new epoch. It must be longer than auth.max_ttl of the edges, by a tenth and two hours."`
	DrainDelay  time.Duration `default:"300ms" rule:"not negative"` // between "draining" and the end of service

	API        api.Config        // its ID, clock, log and registry are set from those here
	Operations operations.Config // its ID, clock, log, registry and HooksBefore are set from those here

	Now      func() time.Time      // wall clock that stamps events
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default works once ID is set.
func Default() Config {
	c := schema.Default[Config]()
	c.API.Now, c.Operations.Now, c.Now = time.Now, time.Now, time.Now
	return c
}

// Validate reports all problems at once.
func (c *Config) Validate() error {
	var id error
	if c.ID == "" {
		id = errors.New(`id: "": must not be empty`)
	}
	return errors.Join(id, schema.Validate(c))
}

// Check implements schema.Checker.
func (c *Config) Check(p *schema.Problems) {
	for name := range c.Namespaces {
		if rule := namespace.CheckName(name); rule != "" {
			p.AddKey(strings.TrimSuffix(p.Key(&c.Namespaces)+"."+name, "."), name, rule)
		}
	}
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
func (c *Config) views() views.Config {
	return views.Config{Self: c.ID, Recheck: c.OwnerRecheck, PauseLimit: c.PauseLimit, Window: c.HandoverWindow}
}

func (c *Config) table() table.Config {
	return table.Config{
		Channel: channel.Config{
			Router: c.ID, QueueBytes: c.QueueBytes / 4, TailAge: c.TailAge, TailEvents: c.TailEvents, TailBytes: c.CacheBytes / 4,
			HandoverWait: c.HandoverWait, HandoverGrace: c.HandoverGrace, KeepEvery: c.ForgetAfter / retention.UsesNoted, RetrySpread: c.API.RetrySpread,
		},
		QueueEvents: c.QueueEvents, QueueBytes: c.QueueBytes, CacheBytes: c.CacheBytes, QuietAfter: c.QuietAfter, RepeatsPerSec: c.RepeatsPerSec,
		Shards: c.Shards,
		Now:    c.Now, Registry: c.Registry,
	}
}

func (c *Config) writer() writer.Config {
	return writer.Config{
		Committers: c.Committers, BatchEvents: c.BatchEvents, BatchBytes: c.BatchBytes, StoreTimeout: c.StoreTimeout,
		RetryFor: c.RetryFor, RetryWait: c.RetryWait, Now: c.Now, Registry: c.Registry,
	}
}

func (c *Config) backfill() backfill.Config {
	return backfill.Config{
		Reads: c.Reads, Window: c.ReadWindow, Pace: c.ReadPace, Ranges: c.ReadRanges, Bytes: c.ReadBytes, Queue: c.ReadQueue,
		Deadline: c.API.ReadDeadline, Registry: c.Registry,
	}
}

func (c *Config) handover() handover.Config {
	return handover.Config{
		ID: c.ID, Wait: c.HandoverWait, Grace: c.HandoverGrace, Timeout: c.HandoverTimeout, PassDeadline: c.API.PublishDeadline,
		MaxChannelBytes: c.CacheBytes / 4, Registry: c.Registry,
	}
}

func (c *Config) retention() retention.Config {
	return retention.Config{
		Every: c.TrimEvery, Limit: c.TrimLimit, KeyWindow: c.KeyWindow, ForgetAfter: c.ForgetAfter, StoreTimeout: c.StoreTimeout, Registry: c.Registry,
	}
}
