package feed

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Config of a Table. Default works but for Encode.
type Config struct {
	// Encode makes the bytes that subscribers get for one event. Called from shard
	// goroutines; it must not keep e. Required.
	Encode func(channel string, epoch uint64, e *gatewayv1.BusEvent) []byte
	View   View // nil: owners are not watched

	Shards int // goroutines that own channels; 0: one for each core

	HoleWait    time.Duration // age at which a hole is asked for: reordering needs no repair
	QueueBytes  int           // messages of the bus that wait for the shards; past it they are dropped
	HoldBytes   int           // encoded events held for one channel behind a hole or an ask
	HeldBytes   int           // the same, for the whole table
	Linger      time.Duration // interest that outlives the last subscriber
	MaxLinger   int           // channels that linger; more are dropped at once
	RepairRate  int           // channels whose repair may begin in a second
	RepairBytes int           // bytes of data that repairs may have in flight
	ChunkBytes  int           // bytes of data asked for at once by a repair
	RepeatRate  int           // pulls that are asked for again in a second, after an unavailable answer
	MinRetry    time.Duration // first wait after an unavailable answer; doubled up to MaxRetry
	MaxRetry    time.Duration

	HeadRate     int           // heads asked for in a second
	HeadInterval time.Duration // every channel's head is checked this often, pace allowing
	HeadDelay    time.Duration // from a new interest on the bus to the check of its head
	SilentAfter  time.Duration // silence of an owner on the bus that makes its channels suspect

	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default returns the settings of a production edge; Encode is left to the
// caller.
func Default() Config {
	return Config{
		HoleWait:     50 * time.Millisecond,
		QueueBytes:   32 << 20,
		HoldBytes:    256 << 10,
		HeldBytes:    64 << 20,
		Linger:       2 * time.Second,
		MaxLinger:    10_000,
		RepairRate:   1_000,
		RepairBytes:  16 << 20,
		ChunkBytes:   256 << 10,
		RepeatRate:   2_000,
		MinRetry:     200 * time.Millisecond,
		MaxRetry:     5 * time.Second,
		HeadRate:     2_000,
		HeadInterval: 30 * time.Second,
		HeadDelay:    700 * time.Millisecond,
		SilentAfter:  3 * time.Second,
	}
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if c.Encode == nil {
		errs = append(errs, errors.New("encode: nil: must be set"))
	}
	if c.Shards < 0 {
		errs = append(errs, fmt.Errorf("shards: %d: must not be negative", c.Shards))
	}
	for _, p := range []struct {
		field string
		value int64
	}{
		{"hole_wait", int64(c.HoleWait)},
		{"queue_bytes", int64(c.QueueBytes)},
		{"hold_bytes", int64(c.HoldBytes)},
		{"held_bytes", int64(c.HeldBytes)},
		{"linger", int64(c.Linger)},
		{"max_linger", int64(c.MaxLinger)},
		{"repair_rate", int64(c.RepairRate)},
		{"repair_bytes", int64(c.RepairBytes)},
		{"chunk_bytes", int64(c.ChunkBytes)},
		{"repeat_rate", int64(c.RepeatRate)},
		{"min_retry", int64(c.MinRetry)},
		{"max_retry", int64(c.MaxRetry)},
		{"head_rate", int64(c.HeadRate)},
		{"head_interval", int64(c.HeadInterval)},
		{"head_delay", int64(c.HeadDelay)},
		{"silent_after", int64(c.SilentAfter)},
	} {
		if p.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %d: must be positive", p.field, p.value))
		}
	}
	return errors.Join(errs...)
}

// ShardCount is how many shards a table of this configuration has; its Bus needs
// to know.
func (c Config) ShardCount() int {
	if c.Shards > 0 {
		return c.Shards
	}
	return runtime.GOMAXPROCS(0)
}
