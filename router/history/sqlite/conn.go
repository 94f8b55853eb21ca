package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"modernc.org/sqlite"
)

// dialer opens connections. It has nothing registered and is never changed.
var dialer sqlite.Driver

// conn is one connection of the driver's, without database/sql around it: the
// locks, copies and checks of that cost 3 us a statement, as much as a statement
// itself. Owned by whoever took the reader or writer that it belongs to.
type conn struct {
	raw      driver.Conn
	args     []driver.NamedValue // of the statement that runs; used again
	begin    *stmt
	beginNow *stmt // takes the lock of the writer
	commit   *stmt
	rollback *stmt
	stmts    []driver.Stmt // all of them: a connection with an open one does not end

	statements int // run so far; tests of cost read it
	rows       int // returned so far
}

func dial(dsn string) (*conn, error) {
	raw, err := dialer.Open(dsn)
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw}
	p := preparer{conn: c}
	c.begin, c.beginNow = p.prepare("BEGIN"), p.prepare("BEGIN IMMEDIATE")
	c.commit, c.rollback = p.prepare("COMMIT"), p.prepare("ROLLBACK")
	if p.err != nil {
		return nil, errors.Join(p.err, c.Close())
	}
	return c, nil
}

// Close ends the statements first. The last connection to a file that ends takes
// its log of writes along.
func (c *conn) Close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

// script runs statements that need no arguments, once.
func (c *conn) script(ctx context.Context, query string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(ctx, query, nil)
	return err
}

// stmt is a prepared statement of one connection; it ends with that. Arguments
// are nil, int64, bool, string or []byte.
type stmt struct {
	conn  *conn
	text  string
	exec  driver.StmtExecContext
	query driver.StmtQueryContext
	dest  []driver.Value // the row that was read last
}

// preparer keeps the first error of many statements.
type preparer struct {
	conn *conn
	err  error
}

func (p *preparer) prepare(query string) *stmt {
	if p.err != nil {
		return nil
	}
	s, err := p.conn.raw.Prepare(query)
	if err != nil {
		p.err = fmt.Errorf("prepare %q: %w", query, err)
		return nil
	}
	p.conn.stmts = append(p.conn.stmts, s)
	return &stmt{conn: p.conn, text: query, exec: s.(driver.StmtExecContext), query: s.(driver.StmtQueryContext)}
}

func (s *stmt) bind(args []any) []driver.NamedValue {
	s.conn.statements++
	bound := s.conn.args[:0]
	for i, arg := range args {
		bound = append(bound, driver.NamedValue{Ordinal: i + 1, Value: arg})
	}
	s.conn.args = bound
	return bound
}

// run returns how many rows a statement changed.
func (s *stmt) run(args ...any) (int64, error) {
	result, err := s.exec.ExecContext(context.Background(), s.bind(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// wait is run for what may wait for another process: the context ends it. The
// driver starts a goroutine for each statement that has one.
func (s *stmt) wait(ctx context.Context) error {
	_, err := s.exec.ExecContext(ctx, s.bind(nil))
	return err
}

// one returns the first row, nil if there is none. It is good until the
// statement runs again.
func (s *stmt) one(args ...any) ([]driver.Value, error) {
	var row []driver.Value
	err := s.each(func(found []driver.Value) bool {
		row = found
		return false
	}, args...)
	return row, err
}

// each calls fn with every row until it says false. A row is good until fn
// returns; its strings and blobs for ever. fn must not run the same statement.
func (s *stmt) each(fn func(row []driver.Value) bool, args ...any) error {
	rows, err := s.query.QueryContext(context.Background(), s.bind(args))
	if err != nil {
		return err
	}
	if s.dest == nil {
		s.dest = make([]driver.Value, len(rows.Columns()))
	}
	for {
		if err := rows.Next(s.dest); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, rows.Close())
		}
		s.conn.rows++
		if !fn(s.dest) {
			return rows.Close()
		}
	}
}

// transact runs fn in a transaction, which is rolled back if fn fails. The
// context bounds the wait for the lock; fn must look at it now and then.
func (c *conn) transact(ctx context.Context, begin *stmt, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := begin.wait(ctx); err != nil {
		return refused(err)
	}
	err := fn()
	if err == nil {
		_, err = c.commit.run()
	}
	if err != nil {
		// An error here means that SQLite has rolled back by itself.
		_, _ = c.rollback.run()
		return refused(err)
	}
	return nil
}
