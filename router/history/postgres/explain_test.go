package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// What the server plans while the tables are empty it keeps, until statistics come a
// minute later, when there may be thousands of channels: no such plan walks through
// a table. Plans of any batch (generic ones) are what is kept.
func TestPlansMadeForEmptyTablesLookUpRows(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	if err := migrate(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	bounded := &pageQuery{bounded: true}
	for name, sql := range map[string]string{
		"append": appendSQL, "append_keyed": appendKeyedSQL, "heads": headsSQL, "repeats": headsSQL + repeatsSQL, "create": createSQL,
		"forward": new(pageQuery).statement(false), "reverse": new(pageQuery).statement(true),
		"bounded_forward": bounded.statement(false), "bounded_reverse": bounded.statement(true),
		"renew": renewSQL, "rows": rowsSQL,
		"due": dueLookSQL, "again": againLookSQL, "cut": cutSQL, "schedule": scheduleSQL, "list": listFreeSQL, "walk": walkSQL,
		"idle": idleSQL, "forget": forgetSQL, "keep": keepSQL,
	} {
		plan := explain(ctx, t, conn, name, sql)
		if strings.Contains(plan, "alternatives:") {
			continue // 13 shows both ways that a sub-select may go, and takes one as it runs; newer ones are tested
		}
		if strings.Contains(plan, "Seq Scan on public.history_") || strings.Contains(plan, "Merge") {
			t.Errorf("%s goes through a table:\n%s", name, plan)
		}
	}
}

// explain is the plan of a statement whatever its arguments.
func explain(ctx context.Context, t *testing.T, conn *pgx.Conn, name, sql string) string {
	t.Helper()
	statement, err := conn.Prepare(ctx, name, sql)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(statement.ParamOIDs)), ", ")
	rows, err := conn.Query(ctx, fmt.Sprintf("EXPLAIN (COSTS OFF, VERBOSE) EXECUTE %q (%s)", name, nulls))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n")
}
