package postgres

import (
	"context"
	"database/sql"
	"fmt"
)

// As many events go as come: what they leave is found early, a twentieth of the
// table at a time, and filled again. Nothing is given back to the system, which
// would need a lock that stops appends.
//
// This is advice to a server that vacuums: one that knows no such parameters is
// not asked twice, and what an operator has set stays.
const (
	tunedSQL = `SELECT count(*) FROM pg_class WHERE relname = $1 AND reloptions::text LIKE '%vacuum_truncate%'`
	tuneSQL  = `ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000, vacuum_truncate = off)`
)

// tune gives up at the first error: the tables work without.
func tune(ctx context.Context, db *sql.DB) {
	for _, table := range []string{"history_events", "history_keys", "history_channels", "history_looks"} {
		var tuned int
		err := db.QueryRowContext(ctx, tunedSQL, table).Scan(&tuned)
		if err == nil && tuned == 0 {
			_, err = db.ExecContext(ctx, fmt.Sprintf(tuneSQL, table))
		}
		if err != nil {
			return
		}
	}
}
