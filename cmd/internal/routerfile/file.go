// Package routerfile is router.yaml: the settings of a router, its store and its node in one
// struct, each declared by the package that uses it.
//
// The mains and package routernode load it. No goroutine, no state.
//
// Left out on purpose: how files, environment and flags are read (cmd/internal/config), and
// what a router makes of the settings (router, routernode).
package routerfile

import (
	"errors"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// File is router.yaml.
type File struct {
	run.Node
	Router        router.Config
	AdvertiseAddr string        `key:"advertise_addr" rule:"host:port" zero:"the address of listen" example:"router-1.internal:8390" doc:"Edges and other routers reach this router at this address."`
	TLS           run.ServerTLS `key:"tls"` // of listen and http_listen

	Store Store `key:"store"`
	API   API   `key:"api"`
}

// Store is where events are kept. Exactly one must be named.
type Store struct {
	Postgres     postgres.Config
	PostgresFile string `key:"postgres_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/postgres" doc:"This file holds the connection string of the PostgreSQL database in which events are stored."`
	SQLite       sqlite.Config
}

// API says who may call the router.
type API struct {
	KeysFile string `key:"keys_file" rule:"a file that can be read" zero:"no keys: only loopback addresses may be listened on" example:"/etc/spillway/api-keys.yaml" doc:"This YAML file holds the API keys."`
}

// minForgetAfter is what is left of it when a use was noted as late as may be, and more.
const minForgetAfter = 4 * time.Hour

// Default works on one machine beside `spillway infra`, once a store is named.
func Default() File {
	f := schema.Default[File]()
	f.Node, f.Router = run.DefaultNode("127.0.0.1:8381"), router.Default()
	return f
}

// Settings lists all keys.
func Settings() []schema.Setting {
	f := Default()
	return schema.Settings(&f)
}

// Load reads router.yaml and the files that it names, and reports everything that is wrong
// with them at once, in a *config.Error.
func Load(src config.Source) (*File, error) {
	f := Default()
	err := config.Load(src, &f, func() (err error) {
		f.Router, err = f.Config()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// Config is what the router is told. It reads the secrets that the file names; errors begin
// with the key.
func (f *File) Config() (router.Config, error) {
	rc := f.Router
	rc.ID, rc.Region = f.ID, f.Region
	if n := f.Store.Postgres.ReadConns; n > 0 { // or it is told
		rc.Reads = n
	}
	rc.Committers = 2
	if f.Store.SQLite.Path != "" {
		rc.Committers = 1
	}
	keys, keysErr := f.API.Keys()
	rc.API.Keys = keys
	secure, tlsErr := f.TLS.Config("tls")
	if secure != nil {
		rc.API.Transport, rc.API.HTTPTLS = credentials.NewTLS(secure), secure
	}
	return rc, errors.Join(keysErr, tlsErr)
}

// Check implements schema.Checker.
func (f *File) Check(p *schema.Problems) {
	host, _, err := net.SplitHostPort(f.Router.API.Listen)
	if f.AdvertiseAddr == "" && err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		p.Add(&f.AdvertiseAddr, "must be set when listen is every address of the host")
	}
	if t := f.Router.ForgetAfter; t > 0 && t < minForgetAfter {
		p.Add(&f.Router.ForgetAfter, "must be 0 or at least 4h")
	}
}

// Check implements schema.Checker.
func (s *Store) Check(p *schema.Problems) {
	named := 0
	for _, v := range []string{s.Postgres.DSN, s.PostgresFile, s.SQLite.Path} {
		if v != "" {
			named++
		}
	}
	if named != 1 {
		p.AddValue(s, strconv.Itoa(named)+" named", "exactly one of postgres, postgres_file and sqlite")
	}
	if s.SQLite.MaxBytes != 0 && s.SQLite.Path == "" {
		p.Add(&s.SQLite.MaxBytes, "needs "+p.Key(&s.SQLite.Path))
	}
}

// DSN is the PostgreSQL connection string; "" if another store is named.
func (s *Store) DSN() (string, error) {
	if s.PostgresFile == "" {
		return s.Postgres.DSN, nil
	}
	return config.Secret("store.postgres_file", s.PostgresFile)
}
