-- Rows of channels that nobody uses go.

-- +goose Up

-- Since when nothing of a channel is stored and nobody has asked for it; NULL while it
-- has events. Such a look is due by this time alone.
ALTER TABLE history_looks ADD COLUMN idle_ms bigint;
CREATE INDEX history_looks_idle ON history_looks (idle_ms) WHERE idle_ms IS NOT NULL;

-- Whether the walk for a rule has listed idle channels as well: not yet.
ALTER TABLE history_rules ADD COLUMN idle boolean NOT NULL DEFAULT false;

-- Its one row is locked by who sets the sequence of epochs: else of two the lower
-- value might come last.
CREATE TABLE history_raise (one boolean PRIMARY KEY CHECK (one));
INSERT INTO history_raise VALUES (true);

-- +goose Down
DROP TABLE history_raise;
ALTER TABLE history_rules DROP COLUMN idle;
DROP INDEX history_looks_idle;
ALTER TABLE history_looks DROP COLUMN idle_ms;
