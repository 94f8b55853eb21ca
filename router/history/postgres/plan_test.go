package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// The server keeps the plan of a statement that it saw first when the tables were
// empty, until statistics come a minute later. A plan that looks through a table, or
// through all keys of a channel, stalled every publish with a key of a new cluster.
func TestPlansOfAnEmptyDatabaseReadWhatIsAsked(t *testing.T) {
	const channels, keys, asked, rounds = 300, 200, 20, 100
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dsn := pgtest.Shared(t).NewDatabase(t)
	store, err := openAt(dsn)()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	for _, table := range []string{"channels", "events", "keys"} {
		if _, err := admin.Exec(ctx, "ALTER TABLE history_"+table+" SET (autovacuum_enabled = off)"); err != nil {
			t.Fatal(err)
		}
	}
	p := planned{t: t, ctx: ctx, store: store}
	for i := range 150 { // every connection has its plans
		p.ask(0, i, asked)
		p.publish(0, 1)
		p.read(0)
	}
	p.create(5_000)
	for c := range channels {
		p.publish(c+1, keys)
	}
	before := rowsRead(ctx, t, admin, 0)
	for i := range rounds {
		if found := p.ask(i+1, i, asked); found != asked {
			t.Fatalf("%d of %d keys are found", found, asked)
		}
		p.publish(i+1, 1)
		p.read(i + 1)
	}
	if err := store.Close(); err != nil { // its connections tell their statistics as they end
		t.Fatal(err)
	}
	after := rowsRead(ctx, t, admin, before["keys"]+rounds*asked)
	for table, most := range map[string]int64{"keys": 3 * rounds * asked, "events": 50 * rounds, "channels": 10 * rounds * asked} {
		if read := after[table] - before[table]; read > most {
			t.Errorf("%d rows of %s were read in %d rounds, allowed are %d", read, table, rounds, most)
		}
	}
	t.Log(before, after)
}

// planned uses a store as a router does.
type planned struct {
	t     *testing.T
	ctx   context.Context
	store history.Store
}

func (p *planned) heads(channel int, keys []history.Key) history.Head {
	p.t.Helper()
	heads, err := p.store.Heads(p.ctx, []history.HeadQuery{{Channel: fmt.Sprintf("chat:%d", channel), Keys: keys}})
	if err != nil {
		p.t.Fatal(err)
	}
	return heads[0]
}

// create makes the rows of channels that nobody asks for again.
func (p *planned) create(channels int) {
	p.t.Helper()
	for from := 0; from < channels; from += 1_000 {
		queries := make([]history.HeadQuery, 1_000)
		for i := range queries {
			queries[i].Channel = fmt.Sprintf("other:%d", from+i)
		}
		if _, err := p.store.Heads(p.ctx, queries); err != nil {
			p.t.Fatal(err)
		}
	}
}

// ask looks for n keys from a number on, and tells how many are there.
func (p *planned) ask(channel, from, n int) int {
	p.t.Helper()
	keys := make([]history.Key, n)
	for k := range keys {
		keys[k] = history.Key{Scope: "b", Key: fmt.Sprint(from + k)}
	}
	return len(p.heads(channel, keys).Repeats)
}

// publish appends n events with keys, numbered as their offsets less one.
func (p *planned) publish(channel, n int) {
	p.t.Helper()
	head := p.heads(channel, nil)
	run := history.Run{Channel: head.Channel, Epoch: head.Epoch, Head: head.Offset}
	for k := range n {
		offset := head.Offset + 1 + uint64(k)
		run.Events = append(run.Events, history.Event{Offset: offset, TimeMS: time.Now().UnixMilli(), Data: []byte("1"), Key: fmt.Sprint(offset - 1), Scope: "b"})
	}
	if outcomes, err := p.store.Append(p.ctx, []history.Run{run}); err != nil || outcomes[0] != history.Stored {
		p.t.Fatal(outcomes, err)
	}
}

func (p *planned) read(channel int) {
	p.t.Helper()
	if _, err := p.store.Read(p.ctx, []history.Range{{Channel: fmt.Sprintf("chat:%d", channel), After: 0, Limit: 5}}); err != nil {
		p.t.Fatal(err)
	}
}

// rowsRead tells how many rows of each table were read so far, once those of the keys
// are at least as many as said: the server tells with a delay.
func rowsRead(ctx context.Context, t *testing.T, admin *pgx.Conn, least int64) map[string]int64 {
	t.Helper()
	read := make(map[string]int64)
	for deadline := time.Now().Add(10 * time.Second); ; {
		rows, err := admin.Query(ctx, `SELECT substr(relname, 9), coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
			FROM pg_stat_user_tables WHERE relname LIKE 'history\_%'`)
		if err != nil {
			t.Fatal(err)
		}
		var table string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error { read[table] = n; return nil }); err != nil {
			t.Fatal(err)
		}
		if read["keys"] >= least || time.Now().After(deadline) {
			return read
		}
	}
}
