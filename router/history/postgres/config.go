package postgres

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/spillway-io/spillway/proto/schema"
)

// Config of a store in PostgreSQL.
type Config struct {
	// DSN is a connection string, URL or key=value, as libpq knows it. It may
	// hold a password: it comes from a file or the environment, never a flag. With
	// several hosts, target_session_attrs=read-write finds the primary.
	DSN string `key:"postgres" zero:"another store is named" example:"postgres://spillway@db.internal/spillway" doc:"Events are stored in this PostgreSQL database. A connection string with a password is better in postgres_file."`
	// WriteConns append, load heads and trim. Batches share them, so more do not write
	// faster. ReadConns are the cap on what returning clients can do to the database at
	// once. Either is far above what helps at its bound, and far below what a mistyped
	// figure could do to a server with its default of 100 connections.
	WriteConns int `key:"write_conns" default:"4" unit:"connections" rule:"between 1 and 64" doc:"So many connections to PostgreSQL write."`
	ReadConns  int `key:"read_conns" default:"4" unit:"connections" rule:"between 1 and 64" doc:"So many reads of the store run at once, each on its own connection to PostgreSQL."`
	// Migrate is false if an operator brings the tables up to date apart, with a role that
	// may.
	Migrate bool `key:"migrate" default:"true" doc:"The router brings the tables of PostgreSQL up to date when it starts."`

	ConnectTimeout time.Duration `default:"5s" rule:"above 0s"` // of one attempt to connect
	// StatementTimeout ends a statement in the server, where a cancellation may not
	// come through: the network is cut, the router is gone. Far above what a call
	// lasts. 0: the server's own setting.
	StatementTimeout time.Duration `default:"30s" rule:"at least 1ms" zero:"the server's own"`
	// MigrateTimeout bounds the wait for another router that migrates the same
	// database, and the migration itself.
	MigrateTimeout time.Duration `default:"60s" rule:"at least 1s"`

	Now func() time.Time // the clock that Trim compares TimeMS with; nil: time.Now
}

// Default works once DSN is set.
func Default() Config { return schema.Default[Config]() }

// Validate reports all problems at once. It does not repeat the DSN: errors are
// logged, passwords are not.
func (c Config) Validate() error {
	var dsn error
	if c.DSN == "" {
		dsn = errors.New(`dsn: "": a connection string is needed`)
	} else if _, err := pgxpool.ParseConfig(c.DSN); err != nil {
		dsn = fmt.Errorf("dsn: %w", err) // pgx leaves the password out
	}
	return errors.Join(dsn, schema.Validate(&c))
}
