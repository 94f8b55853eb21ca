package routernode

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/namespace"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNamespacesAndKeysReachTheRouter(t *testing.T) {
	keys := write(t, "keys.yaml", "keys:\n- {name: billing, secret: 0123456789abcdef, rights: [publish, edge]}\n")
	f, err := routerfile.Load(config.Source{File: write(t, "router.yaml",
		"store: {sqlite: x}\nlisten: 0.0.0.0:8390\nadvertise_addr: r1:8390\napi: {keys_file: "+keys+"}\n"+
			"namespaces: {chat: {subscribe: everyone, publish: everyone}, tick: {durability: none, recover: false}, plain: }\n")})
	if err != nil {
		t.Fatal(err)
	}
	rc, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	if rc.Namespaces["plain"] != namespace.Default() {
		t.Errorf("defaults differ: %+v, %+v", rc.Namespaces["plain"], namespace.Default())
	}
	chat, tick := rc.Namespaces["chat"], rc.Namespaces["tick"]
	if chat.Subscribe != namespace.Everyone || chat.Publish != namespace.Everyone || tick.Durability != namespace.None || tick.Recover || tick.Publish != namespace.Nobody {
		t.Errorf("chat %+v, tick %+v", chat, tick)
	}
	if len(rc.API.Keys) != 1 || rc.API.Keys[0].Name != "billing" || rc.API.Keys[0].Rights[1] != api.RightEdge {
		t.Errorf("keys %+v", rc.API.Keys)
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	keys := write(t, "keys.yaml", "keys:\n- {name: a, secret: short, rights: [rule]}\n")
	_, err := routerfile.Load(config.Source{File: write(t, "router.yaml",
		"listen: 0.0.0.0:8390\napi: {keys_file: "+keys+"}\nlimits: {cache_bytes: 0, max_event_bytes: 9999999}\nnamespaces: {\"a:b\": }\n")})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"store: ", "advertise_addr: ", "keys.a: (secret)", "cache_bytes: 0", "max_event_bytes: 9999999", "namespaces.a:b: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	_, err = routerfile.Load(config.Source{File: write(t, "router.yaml", "store: {sqlite: x}\nlisten: 0.0.0.0:8390\nadvertise_addr: r1:8390\n")})
	if err == nil || !strings.Contains(err.Error(), "without API keys only a loopback address") {
		t.Errorf("open to all: %v", err)
	}
}

// A router whose database is away is alive, not ready, and ends when it is told to.
func TestDatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	cfg := &routerfile.Store{Postgres: postgres.Default()}
	cfg.Postgres.DSN = "postgres://u@" + nobody.Addr().String() + "/x?sslmode=disable"
	_, err = openStore(ctx, cfg, slog.New(slog.DiscardHandler))
	if err == nil || ctx.Err() == nil {
		t.Errorf("it did not wait: %v", err)
	}
}

// A bound on the file of SQLite is a full disk to those who publish: nothing is stored past it.
func TestTheFileOfSQLiteHasItsBound(t *testing.T) {
	cfg := routerfile.Default().Store
	cfg.SQLite.Path, cfg.SQLite.MaxBytes = filepath.Join(t.TempDir(), "history.db"), 1<<20
	store, err := openStore(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	heads, err := store.Heads(t.Context(), []history.HeadQuery{{Channel: "chat:a"}})
	if err != nil {
		t.Fatal(err)
	}
	head := heads[0]
	for range 100 {
		run := history.Run{Channel: "chat:a", Epoch: head.Epoch, Head: head.Offset, Events: []history.Event{{Offset: head.Offset + 1, Data: make([]byte, 50<<10), Binary: true}}}
		if _, err = store.Append(t.Context(), []history.Run{run}); err != nil {
			break
		}
		head.Offset++
	}
	if bytes := head.Offset * 50 << 10; err == nil || bytes > 1<<20 || bytes < 1<<19 {
		t.Errorf("%d bytes were stored in a file of 1 MiB, then %v", bytes, err)
	}
}
