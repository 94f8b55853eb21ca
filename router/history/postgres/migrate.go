package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// migrationsTable is apart from the goose table of others in the database.
	migrationsTable = "history_migrations"
	// migrationsLock is the advisory lock that one migrating router holds.
	migrationsLock = 0x5350494c48495354 // "SPILHIST"
	// migrateLockTimeout bounds the wait for a lock on a table, since every append
	// waits behind a migration that waits.
	migrateLockTimeout = time.Second
	migrateRetry       = 500 * time.Millisecond
)

// migrate brings the schema up to date. Routers that start at once do it one
// after the other, and all but the first find nothing to do.
func migrate(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.MigrateTimeout)
	defer cancel()
	for {
		err := migrateTo(ctx, cfg, goose.MaxVersion)
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != codeLockNotAvailable {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(migrateRetry): // appends go first
		}
	}
}

func migrateTo(ctx context.Context, cfg Config, version int64) (err error) {
	cc, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		return err
	}
	cc.ConnectTimeout = cfg.ConnectTimeout
	db := stdlib.OpenDB(*cc, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", migrateLockTimeout.Milliseconds()))
		return err
	}))
	defer func() { err = errors.Join(err, db.Close()) }()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, migrationsTable)
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(migrationsLock),
		lock.WithLockTimeout(1, uint64(cfg.MigrateTimeout/time.Second)), // seconds between tries, tries
	)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider("", db, files,
		goose.WithStore(store), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if _, err = provider.UpTo(ctx, version); err == nil {
		tune(ctx, db)
	}
	return err
}
