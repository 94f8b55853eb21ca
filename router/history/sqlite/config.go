package sqlite

import (
	"errors"
	"fmt"
	"time"
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
	// Path of the database file; its folder must exist. No default.
	Path string
	// Synchronous: when a commit counts as done. Default (and zero): Full.
	Synchronous Synchronous
	// ReadConns is how many reads may run at once, beside the one writer.
	// Default 2; at least 1.
	ReadConns int
	// CacheBytes is the page cache of each connection. Default 16 MiB; at
	// least 1 MiB.
	CacheBytes int
	// MaxBytes bounds the file (not its log): past it an append fails as on a
	// full disk, until retention has freed pages. Default 0: no bound.
	MaxBytes int64
	// Now is the clock that Trim compares TimeMS with. Default (and nil): time.Now.
	Now func() time.Time
}

// Default works once Path is set.
func Default() Config {
	return Config{Synchronous: Full, ReadConns: 2, CacheBytes: 16 << 20, Now: time.Now}
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New(`path: "": a file is needed`))
	}
	if c.Synchronous > Normal {
		errs = append(errs, fmt.Errorf("synchronous: %v: must be FULL or NORMAL", c.Synchronous))
	}
	if c.ReadConns < 1 {
		errs = append(errs, fmt.Errorf("read_conns: %d: must be at least 1", c.ReadConns))
	}
	if c.CacheBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("cache_bytes: %d: must be at least 1 MiB", c.CacheBytes))
	}
	if c.MaxBytes != 0 && c.MaxBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("max_bytes: %d: must be 0 or at least 1 MiB", c.MaxBytes))
	}
	return errors.Join(errs...)
}
