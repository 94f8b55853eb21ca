package sqlite

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/spillway-io/spillway/router/history"
)

// refused marks the errors that another try with the same content would meet
// again: a constraint, a value too big, a type that a column cannot hold.
func refused(err error) error {
	var refusal *history.RefusedError
	var e *sqlite.Error
	if errors.As(err, &refusal) || !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return &history.RefusedError{Err: err}
	}
	return err
}
