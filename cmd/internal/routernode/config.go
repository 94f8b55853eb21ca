package routernode

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// storeRetry is the pause between two tries to reach the database.
const storeRetry = 2 * time.Second

// openStore opens the one store that is named. A database that cannot be reached is
// tried again until ctx ends; one that refuses is an error.
func openStore(ctx context.Context, cfg *routerfile.Store, log *slog.Logger) (history.Store, error) {
	if cfg.SQLite.Path != "" {
		store, err := sqlite.Open(ctx, cfg.SQLite)
		if err != nil {
			return nil, fmt.Errorf("store.sqlite: %w", err)
		}
		return store, nil
	}
	pc := cfg.Postgres
	var err error
	if pc.DSN, err = cfg.DSN(); err != nil {
		return nil, run.Usagef("%s", err)
	}
	if err := pc.Validate(); err != nil {
		return nil, run.Usagef("store.postgres: %s", run.OneLine(err))
	}
	for {
		store, err := postgres.Open(ctx, pc)
		if err == nil {
			return store, nil
		}
		if !postgres.Away(err) || ctx.Err() != nil {
			return nil, fmt.Errorf("store.postgres: %w", err)
		}
		log.Warn("the database cannot be reached; trying again", "err", err, "in", storeRetry)
		timer := time.NewTimer(storeRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("store.postgres: %w", err)
		case <-timer.C:
		}
	}
}
