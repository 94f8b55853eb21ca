package sqlite

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/proto/schema"
)

// Synchronous says when a commit has reached the disk.
type Synchronous uint8

const (
	// Full syncs the log at every commit: an acked event survives a power cut.
	Full Synchronous = iota
	// Normal syncs at checkpoints only: an acked event survives the death of
	// the process, a power cut may take the newest ones.
	Normal
)

func (s Synchronous) String() string {
	switch s {
	case Full:
		return "FULL"
	case Normal:
		return "NORMAL"
	}
	return fmt.Sprintf("Synchronous(%d)", uint8(s))
}

// Config of a store in one SQLite file.
type Config struct {
	Path string `key:"sqlite" zero:"another store is named" example:"/var/lib/spillway/history.db" doc:"Events are stored in this SQLite file, whose folder must exist. It is for a single router."`
	// MaxBytes bounds the file (not its log): past it an append fails as on a
	// full disk, until retention has freed pages.
	MaxBytes int64 `key:"sqlite_max_bytes" default:"0" unit:"bytes" rule:"at least 1,048,576" zero:"no bound" doc:"The SQLite file may be so large. Past it publishes answer UNAVAILABLE until retention has made room, as on a full disk."`

	Synchronous Synchronous // when a commit counts as done
	ReadConns   int         `default:"2" rule:"at least 1"`          // reads that may run at once, beside the one writer
	CacheBytes  int         `default:"16 MiB" rule:"at least 1 MiB"` // page cache of each connection

	Now func() time.Time // the clock that Trim compares TimeMS with; nil: time.Now
}

// Default works once Path is set.
func Default() Config { return schema.Default[Config]() }

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New(`path: "": a file is needed`))
	}
	if c.Synchronous > Normal {
		errs = append(errs, fmt.Errorf("synchronous: %v: must be FULL or NORMAL", c.Synchronous))
	}
	return errors.Join(append(errs, schema.Validate(&c))...)
}
