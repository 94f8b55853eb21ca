-- Retention that looks only at channels that may have something to lose.

-- +goose Up

-- Past this head an append puts the channel on the list of looks. 2^62 + head: it is
-- there, since that head. 0, of new and old rows alike: the next append does it.
ALTER TABLE history_channels ADD COLUMN look_at bigint NOT NULL DEFAULT 0;

CREATE TABLE history_looks (
    channel text   COLLATE "C" PRIMARY KEY,
    due_ms  bigint NOT NULL
);
CREATE INDEX history_looks_due ON history_looks (due_ms, channel);

-- The rules that the looks were made for. After a change all channels of the
-- namespace are put on the list, in order; walked is the last one that was, NULL
-- when all were.
CREATE TABLE history_rules (
    namespace text   COLLATE "C" PRIMARY KEY,
    size      bigint NOT NULL,
    ttl_ms    bigint NOT NULL,
    walked    text   COLLATE "C"
);

-- +goose Down
DROP TABLE history_rules;
DROP TABLE history_looks;
ALTER TABLE history_channels DROP COLUMN look_at;
