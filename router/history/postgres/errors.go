package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/spillway-io/spillway/router/history"
)

// SQLSTATE (PostgreSQL manual, appendix A).
const (
	classDataException = "22"    // a value that a column cannot hold
	classConstraint    = "23"    // integrity constraint violation
	classProgramLimit  = "54"    // too big for a page, an index entry, a message
	codeDeadlock       = "40P01" // this one was chosen to die
	codeSerialization  = "40001" // at stricter isolation levels and in compatible databases
)

// told makes of a database error what a caller branches on: the end of its own
// context (a statement cancelled for it fails with an error of the server), or
// content that was refused.
func told(ctx context.Context, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return refused(err)
}

// refused marks what another try with the same content would meet again.
func refused(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || len(e.Code) < 2 {
		return err
	}
	switch e.Code[:2] {
	case classDataException, classConstraint, classProgramLimit:
		return &history.RefusedError{Err: err}
	}
	return err
}

// lostRace says that the database rolled the statement back because of others.
func lostRace(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == codeDeadlock || e.Code == codeSerialization)
}
