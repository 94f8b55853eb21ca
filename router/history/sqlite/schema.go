package sqlite

import (
	"context"
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
`, `
-- Rows that appends change are small and without names; events are chained.
CREATE TABLE names (
	channel TEXT PRIMARY KEY,
	id      INTEGER NOT NULL
) WITHOUT ROWID;

-- The fence: epoch and head. first..head are stored; last is where head is in the
-- log; oldest_ms is the time of first, NULL if nothing is stored.
CREATE TABLE heads (
	id        INTEGER PRIMARY KEY,
	epoch     INTEGER NOT NULL,
	head      INTEGER NOT NULL,
	last      INTEGER NOT NULL,
	first     INTEGER NOT NULL,
	oldest_ms INTEGER,
	namespace TEXT NOT NULL
);
CREATE INDEX heads_oldest ON heads (namespace, oldest_ms) WHERE oldest_ms IS NOT NULL;

-- The log, in the order of commits; prev is the place of the event before.
CREATE TABLE log (
	id         INTEGER PRIMARY KEY,
	channel_id INTEGER NOT NULL,
	offset     INTEGER NOT NULL,
	prev       INTEGER NOT NULL,
	time_ms    INTEGER NOT NULL,
	binary     INTEGER NOT NULL,
	sender     TEXT NOT NULL,
	meta       BLOB,
	data       BLOB NOT NULL
);

-- Where every 64th event is in the log.
CREATE TABLE marks (
	channel_id INTEGER NOT NULL,
	offset     INTEGER NOT NULL,
	place      INTEGER NOT NULL,
	PRIMARY KEY (channel_id, offset)
) WITHOUT ROWID;

CREATE TABLE repeats (
	channel_id INTEGER NOT NULL,
	scope      TEXT NOT NULL,
	key        TEXT NOT NULL,
	offset     INTEGER NOT NULL,
	time_ms    INTEGER NOT NULL,
	PRIMARY KEY (channel_id, scope, key)
) WITHOUT ROWID;
CREATE INDEX repeats_time ON repeats (time_ms);

-- How far retention by size has looked, under which rules: channels up to walked
-- (-1: all), then the log up to scanned.
CREATE TABLE retention (
	rules   TEXT NOT NULL,
	walked  INTEGER NOT NULL,
	scanned INTEGER NOT NULL
);
INSERT INTO retention VALUES ('', 0, 0);

-- The largest place in the log that has been given and taken back.
INSERT INTO counters VALUES ('log', 0);

INSERT INTO names SELECT channel, id FROM channels;
INSERT INTO heads
	SELECT c.id, max(c.epoch, c.renewed), c.head,
		coalesce((SELECT e.id FROM events e WHERE e.channel_id = c.id AND e.epoch = c.epoch AND e.offset = c.head), 0),
		coalesce((SELECT min(e.offset) FROM events e WHERE e.channel_id = c.id AND e.epoch = c.epoch), c.head + 1),
		(SELECT e.time_ms FROM events e WHERE e.channel_id = c.id AND e.epoch = c.epoch ORDER BY e.offset LIMIT 1),
		substr(c.channel, 1, max(instr(c.channel, ':') - 1, 0))
	FROM channels c ORDER BY c.id;
INSERT INTO log
	SELECT e.id, e.channel_id, e.offset,
		coalesce((SELECT p.id FROM events p WHERE p.channel_id = e.channel_id AND p.epoch = e.epoch AND p.offset = e.offset - 1), 0),
		e.time_ms, e.binary, e.sender, e.meta, e.data
	FROM events e ORDER BY e.id;
INSERT INTO marks SELECT channel_id, offset, id FROM events WHERE offset % 64 = 0 ORDER BY channel_id, offset;
INSERT INTO repeats SELECT channel_id, scope, key, offset, time_ms FROM keys ORDER BY channel_id, scope, key;
DROP TABLE keys;
DROP TABLE events;
DROP TABLE channels;
`, `
-- Since when nothing of a channel is stored and nobody has asked for it; NULL while
-- it has events. Names are found by id when their channels are forgotten.
ALTER TABLE heads ADD COLUMN idle_ms INTEGER;
CREATE INDEX heads_idle ON heads (idle_ms) WHERE idle_ms IS NOT NULL;
CREATE UNIQUE INDEX names_id ON names (id);
UPDATE heads SET idle_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000 WHERE first > head;
`}

// migrate does the steps that the file lacks, in one transaction, so that two
// processes that open it at once do each step once.
func migrate(ctx context.Context, c *conn) error {
	p := preparer{conn: c}
	application, version := p.prepare("PRAGMA application_id"), p.prepare("PRAGMA user_version")
	if p.err != nil {
		return p.err
	}
	return c.transact(ctx, c.beginNow, func() error {
		id, err := number(application)
		if err != nil {
			return err
		}
		done, err := number(version)
		if err != nil {
			return err
		}
		if id != 0 && id != applicationID {
			return fmt.Errorf("the file belongs to another application (id %#x)", id)
		}
		if done > int64(len(migrations)) {
			return fmt.Errorf("the file has schema version %d, this program knows up to %d", done, len(migrations))
		}
		if done == int64(len(migrations)) {
			return nil
		}
		for _, step := range migrations[done:] {
			if err := c.script(ctx, step); err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
		}
		return c.script(ctx, fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(migrations)))
	})
}

// number is the first column of the only row.
func number(s *stmt) (int64, error) {
	row, err := s.one()
	if err != nil {
		return 0, err
	}
	return row[0].(int64), nil
}
