-- A file as it was before events were chained (schema version 2).
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

-- The epoch that a renewal gave, else 0. Readers and the fence go by the larger of
-- the two; events and keys stay under epoch.
ALTER TABLE channels ADD COLUMN renewed INTEGER NOT NULL DEFAULT 0;
PRAGMA application_id = 0x5350494c;
PRAGMA user_version = 2;
