package postgres

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Config of a store in PostgreSQL.
type Config struct {
	// DSN is a connection string, URL or key=value, as libpq knows it. It may
	// hold a password: it comes from a file or the environment, never a flag. With
	// several hosts, target_session_attrs=read-write finds the primary. No default.
	DSN string
	// WriteConns is the most connections that append, load heads and trim.
	// Default 4; at least 1. Batches share them, so more do not write faster.
	WriteConns int
	// ReadConns is the most connections that read events: the cap on what
	// returning clients can do to the database at once. Default 4; at least 1.
	ReadConns int
	// ConnectTimeout bounds one attempt to connect. Default 5 s; > 0.
	ConnectTimeout time.Duration
	// StatementTimeout ends a statement in the server, where a cancellation may not
	// come through: the network is cut, the router is gone. Far above what a call
	// lasts. Default 30 s; 0: the server's own setting.
	StatementTimeout time.Duration
	// MigrateTimeout bounds the wait for another router that migrates the same
	// database, and the migration itself. Default 60 s; at least 1 s.
	MigrateTimeout time.Duration
	// Migrate brings the tables up to date in Open. Default true; false if an
	// operator does it apart, with a role that may.
	Migrate bool
	// Now is the clock that Trim compares TimeMS with. Default (and nil): time.Now.
	Now func() time.Time
}

// Default works once DSN is set.
func Default() Config {
	return Config{
		WriteConns:       4,
		ReadConns:        4,
		ConnectTimeout:   5 * time.Second,
		StatementTimeout: 30 * time.Second,
		MigrateTimeout:   60 * time.Second,
		Migrate:          true,
		Now:              time.Now,
	}
}

// Validate reports all problems at once. It does not repeat the DSN: errors are
// logged, passwords are not.
func (c Config) Validate() error {
	var errs []error
	if c.DSN == "" {
		errs = append(errs, errors.New(`dsn: "": a connection string is needed`))
	} else if _, err := pgxpool.ParseConfig(c.DSN); err != nil {
		errs = append(errs, fmt.Errorf("dsn: %w", err)) // pgx leaves the password out
	}
	if c.WriteConns < 1 || c.WriteConns > maxConns {
		errs = append(errs, fmt.Errorf("write_conns: %d: must be 1 to %d", c.WriteConns, maxConns))
	}
	if c.ReadConns < 1 || c.ReadConns > maxConns {
		errs = append(errs, fmt.Errorf("read_conns: %d: must be 1 to %d", c.ReadConns, maxConns))
	}
	if c.ConnectTimeout <= 0 {
		errs = append(errs, fmt.Errorf("connect_timeout: %v: must be > 0", c.ConnectTimeout))
	}
	if c.StatementTimeout < 0 || c.StatementTimeout > 0 && c.StatementTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("statement_timeout: %v: must be 0 or at least 1ms", c.StatementTimeout))
	}
	if c.MigrateTimeout < time.Second {
		errs = append(errs, fmt.Errorf("migrate_timeout: %v: must be at least 1s", c.MigrateTimeout))
	}
	return errors.Join(errs...)
}

// maxConns of either pool: far above what helps, far below what a mistyped
// figure could do to a server with its default of 100 connections.
const maxConns = 64
