package infra

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg Config) *Infra {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// etcd does one thing with a client.
func etcd(t *testing.T, in *Infra, do func(ctx context.Context, c *clientv3.Client)) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{in.EtcdEndpoint()}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	do(ctx, c)
}

func TestBothAnswerAndDataStays(t *testing.T) {
	dir := t.TempDir()
	in := start(t, Config{Dir: dir})
	conn, err := nats.Connect(in.NATSURL())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	etcd(t, in, func(ctx context.Context, c *clientv3.Client) {
		if _, err := c.Put(ctx, "a", "1"); err != nil {
			t.Fatal(err)
		}
	})
	in.Close()
	in.Close()
	again := start(t, Config{Dir: dir, NoNATS: true})
	if again.NATSURL() != "" {
		t.Error("NATS runs")
	}
	etcd(t, again, func(ctx context.Context, c *clientv3.Client) {
		got, err := c.Get(ctx, "a")
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
			t.Errorf("after a restart: %v, %v", got, err)
		}
	})
}

func TestPortsTakenAreTold(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := other.Addr().(*net.TCPAddr).Port
	for what, cfg := range map[string]Config{"nats": {NATSPort: port}, "etcd": {EtcdPort: port}} {
		_, err := Start(t.Context(), cfg)
		var taken *run.PortTakenError
		if !errors.As(err, &taken) || taken.What != what || taken.Addr != other.Addr().String() || run.Code(err) != run.ExitUsage {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFolderHasOneUser(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = Start(t.Context(), Config{Dir: dir, NoNATS: true})
	var taken *DirTakenError
	if !errors.As(err, &taken) || taken.Path != dir {
		t.Errorf("got %v", err)
	}
}

func TestTemporaryFolderIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	start(t, Config{NoNATS: true}).Close()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "spillway-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
