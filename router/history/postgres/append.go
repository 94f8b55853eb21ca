package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
)

// A batch is one statement: $1-$4 are the runs, $5-$11 their events, each with
// the number of its run, $12 the time now, $13-$17 the keys if there are any. It
// returns the numbers of the runs that won.
//
// A channel that grows past its look_at is put on the list of retention (looks.go):
// in due, only by the statement that took it past.
//
// The joins with won are FULL joins behind a condition that the planner cannot
// make stricter. Only a hash or merge join can do that, whatever a cached plan
// believes of the arrays' lengths; the nested loop that it would choose for few
// rows compares every event with every run.
//
// The sub-selects, here and in the other statements, hide from the planner how small
// a batch is. It would make a new plan for each small one, since that looks cheaper
// to run, and the planning costs more than the batch itself.
//
// The conditions of the form x = x + 0, here and in the other statements, are true. The
// planner takes them to leave one row, and so looks up the channels of a batch by
// their index, also while it believes that the tables are small: those of a new
// cluster, until statistics come a minute later, in plans that are kept till then.
const (
	storeSQL = `
WITH won AS (
	UPDATE history_channels c
	SET head = r.new_head,
		look_at = CASE WHEN r.new_head > c.look_at THEN r.new_head + 4611686018427387904 ELSE c.look_at END
	FROM unnest((SELECT $1::text[]), $2::bigint[], $3::bigint[], $4::bigint[])
		WITH ORDINALITY AS r (channel, epoch, head, new_head, run)
	WHERE c.channel = r.channel AND GREATEST(c.epoch, c.renewed) = r.epoch AND c.head = r.head
		AND r.run = r.run + 0
	RETURNING r.run, c.id, c.epoch, c.channel, c.look_at = c.head + 4611686018427387904 AS due
), stored AS (
	INSERT INTO history_events (channel_id, epoch, "offset", time_ms, is_binary, sender, meta, data)
	SELECT w.id, w.epoch, e.pos, e.time_ms, e.is_binary, e.sender, e.meta, e.data
	FROM unnest((SELECT $5::bigint[]), $6::bigint[], $7::bigint[], $8::boolean[], $9::text[], $10::bytea[], $11::bytea[])
		AS e (run, pos, time_ms, is_binary, sender, meta, data)
	FULL JOIN won w ON w.run = e.run
	WHERE coalesce(w.id, -1) <> -1
), listed AS (
	INSERT INTO history_looks (channel, due_ms)
	SELECT channel, $12::bigint FROM won WHERE due
	ON CONFLICT (channel) DO UPDATE SET due_ms = excluded.due_ms, idle_ms = NULL
)`
	keySQL = `, keyed AS (
	INSERT INTO history_keys (channel_id, epoch, scope, key, "offset", time_ms)
	SELECT w.id, w.epoch, k.scope, k.key, k.pos, k.time_ms
	FROM unnest((SELECT $13::bigint[]), $14::text[], $15::text[], $16::bigint[], $17::bigint[])
		AS k (run, scope, key, pos, time_ms)
	FULL JOIN won w ON w.run = k.run
	WHERE coalesce(w.id, -1) <> -1 AND coalesce(k.run, -1) <> -1
)`
	winnersSQL = `
SELECT run FROM won`
	appendSQL      = storeSQL + winnersSQL
	appendKeyedSQL = storeSQL + keySQL + winnersSQL
)

// Append implements history.Store. A batch that lost a deadlock is tried once
// more, whole; if that loses too, every run of it is Lost: nothing is stored.
func (s *Store) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	if err := history.CheckRuns(runs); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	defer s.gate.Leave()
	outcomes := make([]history.Outcome, len(runs))
	for i := range outcomes {
		outcomes[i] = history.Lost
	}
	args := newAppendArgs(runs, s.cfg.Now().UnixMilli())
	err := s.appendOnce(ctx, args, outcomes)
	if judge(err) == race {
		err = s.appendOnce(ctx, args, outcomes)
	}
	if err != nil && judge(err) != race {
		return nil, fmt.Errorf("append history: %w", s.failed(ctx, err))
	}
	return outcomes, nil
}

// appendOnce marks the winners only when the whole answer is there: without an
// error, the statement has been committed.
func (s *Store) appendOnce(ctx context.Context, args *appendArgs, outcomes []history.Outcome) error {
	query, values := args.statement()
	rows, err := s.writing.Query(ctx, query, values...)
	if err != nil {
		return err
	}
	won, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	for _, run := range won {
		outcomes[run-1] = history.Stored
	}
	return nil
}

// appendArgs are the columns of a batch.
type appendArgs struct {
	nowMS int64

	channels                []string
	epochs, heads, newHeads []int64

	runs, offsets, times []int64
	binaries             []bool
	senders              []string
	metas, datas         [][]byte

	keyRuns, keyOffsets, keyTimes []int64
	scopes, keys                  []string
}

func newAppendArgs(runs []history.Run, nowMS int64) *appendArgs {
	events := 0
	for i := range runs {
		events += len(runs[i].Events)
	}
	a := &appendArgs{
		nowMS:    nowMS,
		channels: make([]string, 0, len(runs)),
		epochs:   make([]int64, 0, len(runs)),
		heads:    make([]int64, 0, len(runs)),
		newHeads: make([]int64, 0, len(runs)),
		runs:     make([]int64, 0, events),
		offsets:  make([]int64, 0, events),
		times:    make([]int64, 0, events),
		binaries: make([]bool, 0, events),
		senders:  make([]string, 0, events),
		metas:    make([][]byte, 0, events),
		datas:    make([][]byte, 0, events),
	}
	for i := range runs {
		a.addRun(int64(i+1), &runs[i])
	}
	return a
}

func (a *appendArgs) addRun(number int64, run *history.Run) {
	a.channels = append(a.channels, run.Channel)
	a.epochs = append(a.epochs, history.Signed(run.Epoch))
	a.heads = append(a.heads, int64(run.Head))
	a.newHeads = append(a.newHeads, int64(run.NewHead()))
	for i := range run.Events {
		a.addEvent(number, &run.Events[i])
	}
}

func (a *appendArgs) addEvent(run int64, e *history.Event) {
	data, meta := e.Data, e.Meta
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	if len(meta) == 0 {
		meta = nil
	}
	a.runs = append(a.runs, run)
	a.offsets = append(a.offsets, int64(e.Offset))
	a.times = append(a.times, e.TimeMS)
	a.binaries = append(a.binaries, e.Binary)
	a.senders = append(a.senders, e.From)
	a.metas = append(a.metas, meta)
	a.datas = append(a.datas, data)
	if e.Key == "" {
		return
	}
	a.keyRuns = append(a.keyRuns, run)
	a.scopes = append(a.scopes, e.Scope)
	a.keys = append(a.keys, e.Key)
	a.keyOffsets = append(a.keyOffsets, int64(e.Offset))
	a.keyTimes = append(a.keyTimes, e.TimeMS)
}

func (a *appendArgs) statement() (string, []any) {
	values := []any{
		a.channels, a.epochs, a.heads, a.newHeads,
		a.runs, a.offsets, a.times, a.binaries, a.senders, a.metas, a.datas,
		a.nowMS,
	}
	if len(a.keys) == 0 {
		return appendSQL, values
	}
	return appendKeyedSQL, append(values, a.keyRuns, a.scopes, a.keys, a.keyOffsets, a.keyTimes)
}
