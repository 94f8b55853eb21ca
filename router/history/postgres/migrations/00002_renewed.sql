-- The epoch that a renewal gave to a channel, else 0. Readers and the fence go by
-- the larger of the two; events and keys stay under epoch.

-- +goose Up
ALTER TABLE history_channels ADD COLUMN renewed bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE history_channels DROP COLUMN renewed;
