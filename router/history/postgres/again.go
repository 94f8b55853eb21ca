package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// raceTries bounds how often a call is made that loses races. At READ COMMITTED
// only deadlocks are lost; where every transaction is serializable, as in
// distributed databases, it is each meeting of two writers.
const raceTries = 10

// again makes a call that changes nothing when it is made twice, until it has
// lost no race. The pauses grow to some 100 ms, each by chance.
func again(ctx context.Context, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		if judge(err) != race || try == raceTries {
			return err
		}
		pause := time.NewTimer(time.Duration(rand.Int64N(int64(time.Millisecond) << min(try, 7))))
		select {
		case <-ctx.Done():
			pause.Stop()
			return err
		case <-pause.C:
		}
	}
}

// exec is again of one statement.
func (s *Store) exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = again(ctx, func() error {
		tag, err = s.writing.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}
