package torture

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
)

func (tr *trial) openStore() {
	cfg := postgres.Default()
	cfg.DSN, cfg.Migrate = tr.c.DSN(), false
	store, err := postgres.Open(tr.t.Context(), cfg)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.store = store
	tr.t.Cleanup(func() { _ = store.Close() })
}

// refusePoison gives the database a constraint that some events do not meet.
func (tr *trial) refusePoison() {
	ctx := tr.t.Context()
	conn, err := pgx.Connect(ctx, tr.c.DSN())
	if err != nil {
		tr.t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname LIKE 'history%' AND a.attname = 'data' AND a.atttypid = 'bytea'::regtype`)
	if err != nil {
		tr.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) == 0 {
		tr.t.Fatalf("tables of events: %v %v", tables, err)
	}
	for _, table := range tables {
		if _, err := conn.Exec(ctx, fmt.Sprintf(`ALTER TABLE %s ADD CONSTRAINT no_poison CHECK (position('%s'::bytea IN data) = 0)`, pgx.Identifier{table}.Sanitize(), poison)); err != nil {
			tr.t.Fatal(err)
		}
	}
	tr.poisoned = true
}

// stored is all of a channel as the database has it.
func (tr *trial) stored(ctx context.Context, channel string) (ledger.Read, error) {
	all := ledger.Read{By: "the end", Via: "the store", Channel: channel, Call: tr.rec.now()}
	after := uint64(0)
	for {
		pages, err := tr.store.Read(ctx, []history.Range{{Channel: channel, After: after, Limit: 5000}})
		if err != nil {
			return all, err
		}
		p := pages[0]
		all.Epoch, all.Head, all.First, all.Return = wire.FormatEpoch(p.Epoch), p.Head, p.First, tr.rec.now()
		for _, e := range p.Events {
			all.Events = append(all.Events, ledger.Event{Offset: e.Offset, Value: valueOf(e.Data)})
			after = e.Offset
		}
		if !p.More {
			return all, nil
		}
	}
}
