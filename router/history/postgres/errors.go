package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/spillway-io/spillway/router/history"
)

// verdict says what an error of the database is to a caller.
type verdict uint8

const (
	// circumstances: the same batch may go in later, or has been committed. Disk
	// full, shutting down, too many connections, cancelled, a broken connection,
	// a missing table: whatever is not named below.
	circumstances verdict = iota
	// content: another try with the same batch would meet the same error.
	content
	// race: rolled back whole because of others; may be tried again at once.
	race
	// moved: this server takes no writes (any more); another one may.
	moved
)

func (v verdict) String() string {
	switch v {
	case circumstances:
		return "circumstances"
	case content:
		return "content"
	case race:
		return "race"
	case moved:
		return "moved"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// verdicts by SQLSTATE (PostgreSQL manual, appendix A), or by its class of two
// characters. A code goes before its class. What is wrongly called content is
// refused for ever; what is wrongly called circumstances is only late: in doubt
// a code is not here.
var verdicts = map[string]verdict{
	"22": content, // data exception: a value that a column cannot hold
	"23": content, // integrity constraint violation: a key that is there already
	"54": content, // program limit exceeded: too big for an index entry, a message

	"40001": race, // serialization failure: stricter isolation, distributed databases
	"40P01": race, // deadlock: this one was chosen to die

	"25006": moved, // read-only transaction: a primary that became a standby

	"22023": circumstances, // invalid parameter value: settings, not rows
	"54001": circumstances, // statement too complex: the server's stack
	"40003": circumstances, // statement completion unknown: it may have been committed
}

// codeLockNotAvailable ends a statement past its lock_timeout.
const codeLockNotAvailable = "55P03"

// judge tells what err is. Errors that are not the database's are circumstances.
func judge(err error) verdict {
	var e *pgconn.PgError
	if !errors.As(err, &e) || len(e.Code) < 2 {
		return circumstances
	}
	if v, ok := verdicts[e.Code]; ok {
		return v
	}
	return verdicts[e.Code[:2]]
}

// away by SQLSTATE, or its class: what ends of itself, as when a server starts, stops,
// recovers from a crash, or has no connection left.
var away = map[string]bool{"08": true, "57P01": true, "57P02": true, "57P03": true, "53300": true}

// Away says that Open failed because there is no server, or none that takes connections
// now: another try may succeed. A wrong password or database is not that.
func Away(err error) bool {
	var e *pgconn.PgError
	if errors.As(err, &e) && len(e.Code) >= 2 {
		return away[e.Code] || away[e.Code[:2]]
	}
	var unreachable *net.OpError
	return errors.As(err, &unreachable) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) // it died while it was talked to
}

// told makes of a database error what a caller branches on: the end of its own
// context (a statement cancelled for it fails with an error of the server), or
// content that was refused.
func told(ctx context.Context, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	if judge(err) == content {
		return &history.RefusedError{Err: err}
	}
	return err
}

// failed is told, after what the error asks of the pools: connections to a
// server that takes no writes any more would fail for ever, and its reads would
// be stale. New ones go where the connection string, a name or a proxy says.
func (s *Store) failed(ctx context.Context, err error) error {
	if judge(err) == moved {
		s.writing.Reset()
		s.reading.Reset()
	}
	return told(ctx, err)
}
