package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/spillway-io/spillway/router/history"
)

// A publisher hears "refused" only of what no other try could store; everything
// else is late, not lost.
func TestErrorsAreToldApart(t *testing.T) {
	for _, c := range []struct {
		code string
		want verdict
	}{
		{"22001", content},       // string_data_right_truncation
		{"22021", content},       // character_not_in_repertoire: NUL, bad UTF-8
		{"22P02", content},       // invalid_text_representation
		{"22003", content},       // numeric_value_out_of_range
		{"23502", content},       // not_null_violation
		{"23505", content},       // unique_violation: a key that is there already
		{"23514", content},       // check_violation
		{"54000", content},       // program_limit_exceeded: an index entry too big
		{"54001", circumstances}, // statement_too_complex
		{"22023", circumstances}, // invalid_parameter_value
		{"40001", race},          // serialization_failure
		{"40P01", race},          // deadlock_detected
		{"40003", circumstances}, // statement_completion_unknown: distributed databases
		{"40002", circumstances}, // transaction_integrity_constraint_violation: not of class 23
		{"25006", moved},         // read_only_sql_transaction: a standby now
		{"25P02", circumstances}, // in_failed_sql_transaction
		{"53100", circumstances}, // disk_full
		{"53200", circumstances}, // out_of_memory
		{"53300", circumstances}, // too_many_connections
		{"55P03", circumstances}, // lock_not_available
		{"57014", circumstances}, // query_canceled, statement_timeout
		{"57P01", circumstances}, // admin_shutdown
		{"57P02", circumstances}, // crash_shutdown
		{"57P03", circumstances}, // cannot_connect_now
		{"58030", circumstances}, // io_error
		{"08006", circumstances}, // connection_failure
		{"28P01", circumstances}, // invalid_password
		{"42P01", circumstances}, // undefined_table: not migrated yet
		{"42501", circumstances}, // insufficient_privilege
		{"XX000", circumstances}, // internal_error
		{"XX001", circumstances}, // data_corrupted
		{"", circumstances},      // a server that says nothing
	} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: c.code})
		if got := judge(err); got != c.want {
			t.Errorf("SQLSTATE %q is %v, want %v", c.code, got, c.want)
		}
		var refused *history.RefusedError
		if got := errors.As(told(context.Background(), err), &refused); got != (c.want == content) {
			t.Errorf("SQLSTATE %q: refused %v", c.code, got)
		}
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		if got := judge(err); got != circumstances {
			t.Errorf("%v is %v, want circumstances", err, got)
		}
	}
}

// A router that starts while its database does not take connections waits for it; one
// whose connection string is wrong says so and ends.
func TestWhoOpensWaitsOnlyForAServerThatIsAway(t *testing.T) {
	state := func(code string) error {
		return fmt.Errorf("migrate postgres history: %w", &pgconn.PgError{Code: code})
	}
	for _, c := range []struct {
		err  error
		away bool
	}{
		{state("57P03"), true}, // cannot_connect_now: it starts, or recovers from a crash
		{state("57P01"), true}, // admin_shutdown
		{state("57P02"), true}, // crash_shutdown
		{state("53300"), true}, // too_many_connections
		{state("08006"), true}, // connection_failure
		{fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")}), true},
		{fmt.Errorf("connect: %w", io.ErrUnexpectedEOF), true},
		{fmt.Errorf("connect: %w", context.DeadlineExceeded), true},
		{state("28P01"), false}, // invalid_password
		{state("3D000"), false}, // invalid_catalog_name: no such database
		{state("42501"), false}, // insufficient_privilege
		{errors.New("a newer program has migrated the database"), false},
	} {
		if got := Away(c.err); got != c.away {
			t.Errorf("%v: away %v, want %v", c.err, got, c.away)
		}
	}
}
