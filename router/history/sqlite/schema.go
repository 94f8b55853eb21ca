package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// applicationID marks the file as ours ("SPIL").
const applicationID = 0x5350494c

// migrations bring an empty file up to date, one step each; user_version counts
// those done. A step that has been released is never changed.
var migrations = [...]string{`
CREATE TABLE counters (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES ('epoch', 0);

-- The fence. id is the epoch that the channel was made with and never changes.
CREATE TABLE channels (
	channel TEXT PRIMARY KEY,
	id      INTEGER NOT NULL,
	epoch   INTEGER NOT NULL,
	head    INTEGER NOT NULL
) WITHOUT ROWID;

-- The log. data comes last: what it spills into overflow pages is read last.
CREATE TABLE events (
	id         INTEGER PRIMARY KEY,
	channel_id INTEGER NOT NULL,
	epoch      INTEGER NOT NULL,
	offset     INTEGER NOT NULL,
	time_ms    INTEGER NOT NULL,
	binary     INTEGER NOT NULL,
	sender     TEXT NOT NULL,
	meta       BLOB,
	data       BLOB NOT NULL
);
CREATE UNIQUE INDEX events_position ON events (channel_id, epoch, offset);

CREATE TABLE keys (
	channel_id INTEGER NOT NULL,
	epoch      INTEGER NOT NULL,
	scope      TEXT NOT NULL,
	key        TEXT NOT NULL,
	offset     INTEGER NOT NULL,
	time_ms    INTEGER NOT NULL,
	PRIMARY KEY (channel_id, epoch, scope, key)
) WITHOUT ROWID;
CREATE INDEX keys_time ON keys (time_ms);
`, `
-- The epoch that a renewal gave, else 0. Readers and the fence go by the larger of
-- the two; events and keys stay under epoch.
ALTER TABLE channels ADD COLUMN renewed INTEGER NOT NULL DEFAULT 0;
`}

// migrate does the steps that the file lacks, in one transaction, so that two
// processes that open it at once do each step once.
func migrate(ctx context.Context, conn *sql.Conn) error {
	return transact(ctx, conn, "BEGIN IMMEDIATE", func() error {
		var id, version int
		if err := conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
			return err
		}
		if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		if id != 0 && id != applicationID {
			return fmt.Errorf("the file belongs to another application (id %#x)", id)
		}
		if version > len(migrations) {
			return fmt.Errorf("the file has schema version %d, this program knows up to %d", version, len(migrations))
		}
		for _, step := range migrations[version:] {
			if _, err := conn.ExecContext(ctx, step); err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
		}
		marks := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(migrations))
		_, err := conn.ExecContext(ctx, marks)
		return err
	})
}
