package router

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
)

// A full disk is a store that is away: publishers hear UNAVAILABLE, no event is
// refused, what was acked stays, and when there is room nobody starts anything
// again. A server whose log is full goes down, and is started until it stays.
func TestFullDiskIsUnavailableAndNothingIsRefused(t *testing.T) {
	t.Run("tables", func(t *testing.T) {
		dsn, makeRoom := pgtest.Start(t, pgtest.NoSync).NewSmallDatabase(t)
		publishUntilFull(t, dsn, makeRoom)
	})
	t.Run("log", func(t *testing.T) {
		server, makeRoom := pgtest.StartWithSmallLog(t)
		publishUntilFull(t, server.DSN("postgres"), makeRoom)
	})
}

func publishUntilFull(t *testing.T, dsn string, makeRoom func()) {
	cfg := postgres.Default()
	cfg.DSN = dsn
	store, err := postgres.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := start(t, store, func(c *Config) { c.RetryFor = 100 * time.Millisecond })

	acked := make(map[uint64]string)
	publish := func() error {
		data := `"` + noise(200_000) + `"`
		placed, err := n.publishErr("chat:a", data, rand.Text())
		if err == nil {
			acked[placed.Offset] = data
		}
		return err
	}
	for err == nil {
		if err = publish(); len(acked) > 1_000 {
			t.Fatal("the disk is never full")
		}
	}
	t.Logf("full after %d events", len(acked))
	for range 3 {
		if err := publish(); err != nil && status.Code(err) != codes.Unavailable {
			t.Fatalf("with a full disk: %v, want UNAVAILABLE", err)
		}
	}
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("with a full disk: %v, want UNAVAILABLE", err)
	}
	makeRoom()
	eventually(t, "publishing works again", func() bool { return publish() == nil })

	stored := n.stored("chat:a")
	for i, e := range stored {
		if e.Offset != uint64(i+1) {
			t.Fatalf("event %d has offset %d", i, e.Offset)
		}
		if data, ok := acked[e.Offset]; ok && data != string(e.Data) {
			t.Fatalf("offset %d holds another event than the one acked", e.Offset)
		}
		delete(acked, e.Offset)
	}
	if len(acked) > 0 {
		t.Errorf("%d acked events are lost", len(acked))
	}
}

// noise is text that no database compresses.
func noise(bytes int) string {
	var b strings.Builder
	for b.Len() < bytes {
		b.WriteString(rand.Text())
	}
	return b.String()
}
