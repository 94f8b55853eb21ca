package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func newKeyValue(t *testing.T, endpoint string) *KeyValue {
	t.Helper()
	client, err := NewClient(ClientConfig{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return NewKeyValue(client, "/spillway/test/", control.Folders(), nil)
}

// server is an etcd that ends with the test, or before.
type server struct {
	*etcdserver.Server
	Close func()
}

func startEtcd(t *testing.T, cfg etcdserver.Config) server {
	t.Helper()
	s, err := etcdserver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	once := server{s, sync.OnceFunc(s.Close)}
	t.Cleanup(once.Close)
	return once
}

// reader keeps what Follow tells.
type reader struct {
	mu      sync.Mutex // guards below
	records map[string]string
	lists   int
}

func follow(t *testing.T, s *KeyValue) *reader {
	r := &reader{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the cleanup ends it and waits
		defer close(done)
		_ = s.Follow(ctx, r.take)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *reader) take(c control.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.Listed:
		r.lists++
		r.records = make(map[string]string)
		for _, l := range c.List {
			r.records[l.Name] = string(l.Value)
		}
	case c.Put != nil:
		r.records[c.Put.Name] = string(c.Put.Value)
	default:
		delete(r.records, c.Deleted)
	}
}

func (r *reader) has(want map[string]string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists > 0 && fmt.Sprint(r.records) == fmt.Sprint(want)
}

func mustPut(t *testing.T, s *KeyValue, name, value string, cond control.If, want bool) int64 {
	t.Helper()
	revision, done, err := s.Put(t.Context(), name, []byte(value), cond)
	if err != nil || done != want {
		t.Fatalf("put %s: %v, %v", name, done, err)
	}
	return revision
}

func TestARecordIsWrittenOnItsCondition(t *testing.T) {
	t.Parallel()
	s := newKeyValue(t, startEtcd(t, etcdserver.Config{Dir: t.TempDir()}).Endpoint())
	_, empty, err := s.List(t.Context(), "operations/")
	if err != nil {
		t.Fatal(err)
	}
	first := mustPut(t, s, "operations/a", "1", control.If{Quiet: empty}, true)
	mustPut(t, s, "operations/a", "2", control.If{}, false)
	mustPut(t, s, "operations/b", "1", control.If{Quiet: empty}, false)
	second := mustPut(t, s, "operations/a", "2", control.If{Revision: first}, true)
	mustPut(t, s, "operations/a", "3", control.If{Revision: first}, false)
	mustPut(t, s, "revocations/x", "1", control.If{}, true) // another folder does not disturb
	mustPut(t, s, "operations/b", "1", control.If{Quiet: second}, true)
	if err := s.Delete(t.Context(), "operations/a", first); err != nil {
		t.Fatal(err)
	}
	records, _, err := s.List(t.Context(), "operations/")
	if err != nil || len(records) != 2 || records[0].Name != "operations/a" || string(records[0].Value) != "2" || records[0].Revision != second {
		t.Errorf("listed %v, %v", records, err)
	}
	if err := s.Delete(t.Context(), "operations/a", second); err != nil {
		t.Fatal(err)
	}
	if records, _, _ := s.List(t.Context(), "operations/a"); len(records) != 0 {
		t.Error("it is still there")
	}
}

// One watch over all folders; members and strangers in its range are not ours.
func TestAKeyValueStoreTellsOfItsFoldersOnly(t *testing.T) {
	t.Parallel()
	s := newKeyValue(t, startEtcd(t, etcdserver.Config{Dir: t.TempDir()}).Endpoint())
	mustPut(t, s, "operations/a", "1", control.If{}, true)
	r := follow(t, s)
	eventually(t, 5*time.Second, "listed", func() bool { return r.has(map[string]string{"operations/a": "1"}) })
	for _, key := range []string{"members/edge/e1", "outlaws/x", "operations", "operations/", "ticket-keyss/1"} {
		if _, err := s.client.Put(t.Context(), s.prefix+key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, s, "ticket-keys/1", "k", control.If{}, true)
	eventually(t, 5*time.Second, "the key alone", func() bool { return r.has(map[string]string{"operations/a": "1", "ticket-keys/1": "k"}) })
}

func TestALongListingComesInPages(t *testing.T) {
	t.Parallel()
	s := newKeyValue(t, startEtcd(t, etcdserver.Config{Dir: t.TempDir()}).Endpoint())
	const n = listPage + 3
	var wait sync.WaitGroup
	for part := range 16 {
		wait.Go(func() {
			for i := part; i < n; i += 16 {
				if _, err := s.client.Put(t.Context(), fmt.Sprintf("%srevocations/%05d", s.prefix, i), "r"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	records, _, err := s.List(t.Context(), "revocations/")
	if err != nil || len(records) != n || !slices.IsSortedFunc(records, func(a, b control.Record) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	}) {
		t.Errorf("%d of %d, %v", len(records), n, err)
	}
}

// etcd stops for two seconds, with its data and then as an empty one: calls fail in
// time, and the listing that follows is the truth.
func TestAKeyValueStoreOutlivesItsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startEtcd(t, etcdserver.Config{Dir: dir})
	port := server.Port()
	s := newKeyValue(t, server.Endpoint())
	mustPut(t, s, "operations/a", "1", control.If{}, true)
	r := follow(t, s)
	eventually(t, 5*time.Second, "listed", func() bool { return r.has(map[string]string{"operations/a": "1"}) })
	server.Close()
	begun := time.Now()
	if _, _, err := s.Put(t.Context(), "operations/b", []byte("1"), control.If{}); err == nil {
		t.Error("a put without a server succeeded")
	}
	if took := time.Since(begun); took > readTimeout+2*time.Second {
		t.Errorf("a call took %v", took)
	}
	server = startEtcd(t, etcdserver.Config{Dir: dir, Port: port})
	eventually(t, 10*time.Second, "a write after its return", func() bool {
		_, done, err := s.Put(t.Context(), "operations/c", []byte("1"), control.If{})
		return err == nil && done
	})
	eventually(t, 10*time.Second, "told after its return", func() bool { return r.has(map[string]string{"operations/a": "1", "operations/c": "1"}) })
	server.Close()
	startEtcd(t, etcdserver.Config{Dir: t.TempDir(), Port: port})
	eventually(t, 15*time.Second, "told that all is gone", func() bool { return r.has(map[string]string{}) })
}

// Two members of a real cluster make the ring at once, and etcd goes and comes back.
func TestControlOverEtcd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startEtcd(t, etcdserver.Config{Dir: dir})
	port := server.Port()
	var all []*control.Control
	for range 4 {
		c := control.New(control.Config{}, newKeyValue(t, server.Endpoint()))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }() // the cleanup ends it and waits
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		all = append(all, c)
	}
	same := func() bool {
		id, key, ok := all[0].Mint(time.Now())
		for _, c := range all {
			other, k, _ := c.Mint(time.Now())
			ok = ok && other == id && string(k) == string(key)
		}
		return ok
	}
	eventually(t, 10*time.Second, "one key", same)
	_, key, _ := all[0].Mint(time.Now())
	server.Close()
	<-time.NewTimer(2 * time.Second).C
	if !same() {
		t.Error("a key went with etcd")
	}
	server = startEtcd(t, etcdserver.Config{Dir: dir, Port: port})
	eventually(t, 10*time.Second, "a drain begins", func() bool {
		return all[0].PutOperation(t.Context(), &gatewayv1.Operation{Id: "0000000000001-abcd", Kind: 1, Node: "e1"}) == nil
	})
	eventually(t, 10*time.Second, "all know of it", func() bool {
		for _, c := range all {
			if len(c.Operations()) != 1 {
				return false
			}
		}
		return true
	})
	server.Close()
	look := newKeyValue(t, startEtcd(t, etcdserver.Config{Dir: t.TempDir(), Port: port}).Endpoint()) // a new, empty one
	eventually(t, 20*time.Second, "written back", func() bool {
		records, _, err := look.List(t.Context(), "")
		return err == nil && len(records) == 2
	})
	if _, k, _ := all[0].Mint(time.Now()); !same() || string(k) != string(key) {
		t.Error("the ring changed with a wiped etcd")
	}
}
