package feed

import (
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/proto/schema"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Config of a Table. Default works but for Encode.
type Config struct {
	// Encode makes the bytes that subscribers get for one event. Called from shard
	// goroutines; it must not keep e. Required.
	Encode func(channel string, epoch uint64, e *gatewayv1.BusEvent) []byte
	View   View // nil: owners are not watched

	Shards int `rule:"not negative"` // goroutines that own channels; 0: one for each core

	HoleWait     time.Duration `default:"50ms" rule:"above 0s"`   // age at which a hole is asked for: reordering needs no repair
	QueueBytes   int           `default:"32 MiB" rule:"above 0"`  // messages of the bus that wait for the shards; past it they are dropped
	HoldBytes    int           `default:"256 KiB" rule:"above 0"` // encoded events held for one channel behind a hole or an ask
	HeldBytes    int           `default:"64 MiB" rule:"above 0"`  // the same, for the whole table
	Linger       time.Duration `default:"2s" rule:"above 0s"`     // interest that outlives the last subscriber
	MaxLinger    int           `default:"10,000" rule:"above 0"`  // channels that linger; more are dropped at once
	RepairRate   int           `default:"1,000" rule:"above 0"`   // channels whose repair may begin in a second
	RepairBytes  int           `default:"16 MiB" rule:"above 0"`  // bytes of data that repairs may have in flight
	ChunkBytes   int           `default:"256 KiB" rule:"above 0"` // bytes of data asked for at once by a repair
	RepeatRate   int           `default:"2,000" rule:"above 0"`   // pulls that are asked for again in a second, after an unavailable answer
	MinRetry     time.Duration `default:"200ms" rule:"above 0s"`  // first wait after an unavailable answer; doubled up to MaxRetry
	MaxRetry     time.Duration `default:"5s" rule:"above 0s"`
	HeadRate     int           `default:"2,000" rule:"above 0"`  // heads asked for in a second
	HeadInterval time.Duration `default:"30s" rule:"above 0s"`   // every channel's head is checked this often, pace allowing
	HeadDelay    time.Duration `default:"700ms" rule:"above 0s"` // from a new interest on the bus to the check of its head
	SilentAfter  time.Duration `default:"3s" rule:"above 0s"`    // silence of an owner on the bus that makes its channels doubtful

	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Default returns the settings of a production edge; Encode is left to the
// caller.
func Default() Config { return schema.Default[Config]() }

// Validate reports every problem at once.
func (c Config) Validate() error {
	if c.Encode == nil {
		return errors.Join(errors.New("encode: nil: must be set"), schema.Validate(&c))
	}
	return schema.Validate(&c)
}

// ShardCount is how many shards a table of this configuration has; its Bus needs
// to know.
func (c Config) ShardCount() int {
	if c.Shards > 0 {
		return c.Shards
	}
	return runtime.GOMAXPROCS(0)
}
