// Package routerfile is router.yaml.
package routerfile

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/schema"
)

// File is router.yaml.
type File struct {
	run.Node
	Listen        string        `key:"listen"`         // host:port of the gRPC server; default 127.0.0.1:8390
	AdvertiseAddr string        `key:"advertise_addr"` // host:port where edges and routers reach it; default: listen
	HTTPListen    string        `key:"http_listen"`    // host:port of the API as JSON over HTTP; default none
	TLS           run.ServerTLS `key:"tls"`            // of listen and http_listen

	Store      Store                `key:"store"`
	Namespaces map[string]Namespace `key:"namespaces"` // by name; "default" is for channels without a colon
	API        API                  `key:"api"`
	Limits     RouterLimits         `key:"limits"`
}

// Store is where events are kept. Exactly one must be named.
type Store struct {
	Postgres     string `key:"postgres"`         // connection string; if it has a password, better postgres_file
	PostgresFile string `key:"postgres_file"`    // a file that holds the connection string
	SQLite       string `key:"sqlite"`           // path of a file; its folder must exist. For a single router
	SQLiteMax    int    `key:"sqlite_max_bytes"` // most bytes of that file: past it publishes answer UNAVAILABLE until retention has made room, as on a full disk; 0: no bound. Default 0
	Migrate      bool   `key:"migrate"`          // bring PostgreSQL's tables up to date at start; default true
	WriteConns   int    `key:"write_conns"`      // most PostgreSQL connections that write; default 4
	ReadConns    int    `key:"read_conns"`       // most connections that read; default 4

	// ForgetAfter: a channel in which nothing is stored and that nobody has asked for
	// since then loses its row, and comes back in a new epoch. Longer than auth.max_ttl
	// of the edges, by a tenth and two hours. 0: never. Default 36h
	ForgetAfter time.Duration `key:"forget_after"`
}

// minForgetAfter is what is left of it when a use was noted as late as may be, and more.
const minForgetAfter = 4 * time.Hour

// Namespace is one kind of channels.
type Namespace struct {
	HistorySize int           `key:"history_size" default:"1000"`    // newest events kept of each channel; 0: no bound. Default 1,000
	HistoryTTL  time.Duration `key:"history_ttl" default:"24h"`      // older events go; 0: no bound. Default 24h
	Durability  string        `key:"durability" default:"committed"` // committed: acked when the store has it; none: never stored. Default committed
	Recover     bool          `key:"recover" default:"true"`         // clients may fetch what they missed; default true
	Subscribe   string        `key:"subscribe" default:"granted"`    // granted: whose token names the channel; everyone. Default granted
	Publish     string        `key:"publish" default:"nobody"`       // granted, everyone, or nobody: backends only. Default nobody

	PublishPerSecond int `key:"publish_per_second"` // events that each router takes from all publishers together; 0: no limit. Default 0
	PublishBurst     int `key:"publish_burst"`      // of them at once; 0: those of one second. Default 0
}

// API says who may call the router.
type API struct {
	KeysFile string `key:"keys_file"` // see Keys; without it only loopback addresses may be listened on
}

// RouterLimits bound what one router holds.
type RouterLimits struct {
	MaxEventBytes int `key:"max_event_bytes"` // of data; default 262,144
	QueueBytes    int `key:"queue_bytes"`     // publishes that wait for the store; default 67,108,864
	CacheBytes    int `key:"cache_bytes"`     // heads and hot tails; default 268,435,456
	ReadBatch     int `key:"read_batch"`      // most questions of edges in one query of the store; 1: a query for each, to compare with. Default 500
}

// DefaultNamespace has what a namespace does not say.
func DefaultNamespace() Namespace {
	return Namespace{
		HistorySize: 1000, HistoryTTL: 24 * time.Hour, Durability: "committed", Recover: true, Subscribe: "granted", Publish: "nobody",
	}
}

// Default works on one machine beside `spillway infra`, once a store is named.
func Default() File {
	return File{
		Node: run.DefaultNode("127.0.0.1:8381"), Listen: "127.0.0.1:8390",
		Store:  Store{Migrate: true, WriteConns: 4, ReadConns: 4, ForgetAfter: 36 * time.Hour},
		Limits: RouterLimits{MaxEventBytes: 256 << 10, QueueBytes: 64 << 20, CacheBytes: 256 << 20, ReadBatch: 500},
	}
}

// Advertised is the address under which others reach this router.
func (f *File) Advertised() string {
	if f.AdvertiseAddr != "" {
		return f.AdvertiseAddr
	}
	return f.Listen
}

// Settings lists all keys.
func Settings() []schema.Setting {
	f := Default()
	return schema.Settings(&f)
}

// Load reads, checks and returns router.yaml. The error, a *config.Error, has all
// problems, with those that more finds ("key: value: rule", joined).
func Load(src config.Source, more func(*File) error) (*File, error) {
	f := Default()
	if err := config.Load(src, &f, func() error { return errors.Join(f.Validate(), more(&f)) }); err != nil {
		return nil, err
	}
	return &f, nil
}

// checks collects problems as "field: value: rule".
type checks struct{ errs []error }

func (c *checks) bad(field string, value any, rule string) {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%q", text)
	}
	c.errs = append(c.errs, fmt.Errorf("%s: %v: %s", field, value, rule))
}

func (c *checks) err() error { return errors.Join(c.errs...) }

func (c *checks) listen(field, value string) {
	if _, _, err := net.SplitHostPort(value); err != nil {
		c.bad(field, value, "must be host:port")
	}
}

// file must be readable if it is named.
func (c *checks) file(field, path string) {
	if path == "" {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		c.bad(field, path, "cannot be read")
		return
	}
	_ = f.Close()
}

func oneOf(value string, of ...string) bool { return slices.Contains(of, value) }

// Validate reports all problems at once. It opens the files that are named.
func (f *File) Validate() error {
	var c checks
	c.listen("listen", f.Listen)
	if f.HTTPListen != "" {
		c.listen("http_listen", f.HTTPListen)
	}
	if f.AdvertiseAddr != "" {
		c.listen("advertise_addr", f.AdvertiseAddr)
	} else if host, _, err := net.SplitHostPort(f.Listen); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		c.bad("advertise_addr", "", "must be set when listen is every address of the host")
	}
	c.file("api.keys_file", f.API.KeysFile)
	c.store(&f.Store)
	for _, name := range slices.Sorted(maps.Keys(f.Namespaces)) {
		c.namespace("namespaces."+name, name, f.Namespaces[name])
	}
	return c.err()
}

func (c *checks) store(s *Store) {
	named := 0
	for _, v := range []string{s.Postgres, s.PostgresFile, s.SQLite} {
		if v != "" {
			named++
		}
	}
	if named != 1 {
		c.bad("store", fmt.Sprintf("%d named", named), "exactly one of postgres, postgres_file and sqlite")
	}
	c.file("store.postgres_file", s.PostgresFile)
	switch {
	case s.SQLiteMax != 0 && s.SQLite == "":
		c.bad("store.sqlite_max_bytes", s.SQLiteMax, "needs store.sqlite")
	case s.SQLiteMax != 0 && s.SQLiteMax < 1<<20:
		c.bad("store.sqlite_max_bytes", s.SQLiteMax, "must be 0 or at least 1,048,576")
	}
	if s.WriteConns < 1 {
		c.bad("store.write_conns", s.WriteConns, "must be above 0")
	}
	if s.ForgetAfter != 0 && s.ForgetAfter < minForgetAfter {
		c.bad("store.forget_after", s.ForgetAfter, "must be 0 or at least "+minForgetAfter.String())
	}
	if s.ReadConns < 1 {
		c.bad("store.read_conns", s.ReadConns, "must be above 0")
	}
}

func (c *checks) namespace(field, name string, ns Namespace) {
	if name == "" || strings.Contains(name, ":") {
		c.bad(field, name, "a namespace has a name without colon")
	}
	if ns.HistorySize < 0 {
		c.bad(field+".history_size", ns.HistorySize, "must not be negative")
	}
	if ns.HistoryTTL < 0 {
		c.bad(field+".history_ttl", ns.HistoryTTL, "must not be negative")
	}
	if ns.PublishPerSecond < 0 {
		c.bad(field+".publish_per_second", ns.PublishPerSecond, "must not be negative")
	}
	if ns.PublishBurst < 0 {
		c.bad(field+".publish_burst", ns.PublishBurst, "must not be negative")
	}
	if ns.PublishBurst > 0 && ns.PublishPerSecond == 0 {
		c.bad(field+".publish_burst", ns.PublishBurst, "needs publish_per_second")
	}
	switch ns.Durability {
	case "committed", "none":
	case "async":
		c.bad(field+".durability", ns.Durability, "exists no more: choose committed if events must survive their router, none if they need not")
	default:
		c.bad(field+".durability", ns.Durability, "must be committed or none")
	}
	if !oneOf(ns.Subscribe, "granted", "everyone") {
		c.bad(field+".subscribe", ns.Subscribe, "must be granted or everyone")
	}
	if !oneOf(ns.Publish, "granted", "everyone", "nobody") {
		c.bad(field+".publish", ns.Publish, "must be granted, everyone or nobody")
	}
}

// DSN is the PostgreSQL connection string; "" if another store is named.
func (s *Store) DSN() (string, error) {
	if s.PostgresFile == "" {
		return s.Postgres, nil
	}
	return config.Secret("store.postgres_file", s.PostgresFile)
}
