package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// Node are the keys that both files have.
type Node struct {
	ID        string `yaml:"id"`         // unique among live members of its role; default: the host name
	Region    string `yaml:"region"`     // a label; default "default"
	Zone      string `yaml:"zone"`       // a label; default none
	OpsListen string `yaml:"ops_listen"` // host:port of /metrics, /healthz, /readyz; never public
	Pprof     bool   `yaml:"pprof"`      // /debug/pprof on the ops listener; default false
	LogLevel  string `yaml:"log_level"`  // debug, info, warn or error; default info

	NATS    NATS    `yaml:"nats"`
	Etcd    Etcd    `yaml:"etcd"`
	Routers Routers `yaml:"routers"`
}

// NATS is the bus.
type NATS struct {
	URLs            []string  `yaml:"urls"`             // default nats://127.0.0.1:4222
	Prefix          string    `yaml:"prefix"`           // of all subjects, equal in the whole cluster; default spillway
	CredentialsFile string    `yaml:"credentials_file"` // a .creds file
	User            string    `yaml:"user"`
	PasswordFile    string    `yaml:"password_file"`
	TLS             ClientTLS `yaml:"tls"`
}

// Etcd is where members are kept.
type Etcd struct {
	Endpoints    []string  `yaml:"endpoints"` // default http://127.0.0.1:2379
	Prefix       string    `yaml:"prefix"`    // of all keys, one for each cluster; default /spillway/c1
	User         string    `yaml:"user"`
	PasswordFile string    `yaml:"password_file"`
	TLS          ClientTLS `yaml:"tls"`
}

// Routers says how this node calls routers: as edge, or as router that forwards.
type Routers struct {
	KeyFile string    `yaml:"key_file"` // an API key with the right "edge"; needed where routers have keys
	TLS     ClientTLS `yaml:"tls"`
}

// ClientTLS is for connections that a node opens. ca_file or a certificate turn TLS on.
type ClientTLS struct {
	CAFile     string `yaml:"ca_file"`   // default: the system's
	CertFile   string `yaml:"cert_file"` // client certificate; with key_file
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"` // default: the host of the address
}

// ServerTLS is for connections that a node accepts.
type ServerTLS struct {
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ClientCAFile string `yaml:"client_ca_file"` // clients need a certificate of it; routers only
}

func defaultNode(opsListen string) Node {
	return Node{
		ID: hostID(), Region: "default", OpsListen: opsListen, LogLevel: "info",
		NATS: NATS{URLs: []string{"nats://127.0.0.1:4222"}, Prefix: "spillway"},
		Etcd: Etcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/spillway/c1"},
	}
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

func (c *checks) node(n *Node) {
	if n.ID == "" || len(n.ID) > 255 || strings.ContainsAny(n.ID, "/ \t\r\n") {
		c.bad("id", n.ID, "must have 1 to 255 bytes without slash or space")
	}
	if n.Region == "" {
		c.bad("region", n.Region, "must not be empty")
	}
	c.listen("ops_listen", n.OpsListen)
	if !oneOf(n.LogLevel, "debug", "info", "warn", "error") {
		c.bad("log_level", n.LogLevel, "must be debug, info, warn or error")
	}
	c.nats(&n.NATS)
	c.etcd(&n.Etcd)
	c.file("routers.key_file", n.Routers.KeyFile)
	c.clientTLS("routers.tls", n.Routers.TLS)
}

func (c *checks) nats(n *NATS) {
	c.urls("nats.urls", n.URLs, "nats", "tls")
	if n.Prefix == "" || strings.ContainsAny(n.Prefix, "*> \t\r\n") || strings.HasPrefix(n.Prefix, "$") {
		c.bad("nats.prefix", n.Prefix, "must be a NATS subject without wildcards")
	}
	c.file("nats.credentials_file", n.CredentialsFile)
	c.file("nats.password_file", n.PasswordFile)
	c.clientTLS("nats.tls", n.TLS)
}

func (c *checks) etcd(e *Etcd) {
	c.urls("etcd.endpoints", e.Endpoints, "http", "https")
	if !strings.HasPrefix(e.Prefix, "/") {
		c.bad("etcd.prefix", e.Prefix, "must begin with a slash")
	}
	c.file("etcd.password_file", e.PasswordFile)
	c.clientTLS("etcd.tls", e.TLS)
}

func (c *checks) listen(field, value string) {
	if _, _, err := net.SplitHostPort(value); err != nil {
		c.bad(field, value, "must be host:port")
	}
}

// urls may hold a password: they are not repeated.
func (c *checks) urls(field string, values []string, schemes ...string) {
	if len(values) == 0 {
		c.bad(field, "[]", "must name at least one")
	}
	for i, v := range values {
		u, err := url.Parse(v)
		if err != nil || u.Host == "" || !oneOf(u.Scheme, schemes...) {
			c.bad(field, fmt.Sprintf("(number %d)", i+1), "must be a URL with "+strings.Join(schemes, ":// or ")+"://")
		}
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

func (c *checks) pair(field, cert, key string) {
	if (cert == "") != (key == "") {
		c.bad(field, cert+key, "cert_file and key_file go together")
	}
	c.file(field+".cert_file", cert)
	c.file(field+".key_file", key)
}

func (c *checks) clientTLS(field string, t ClientTLS) {
	c.file(field+".ca_file", t.CAFile)
	c.pair(field, t.CertFile, t.KeyFile)
}

func oneOf(value string, of ...string) bool {
	for _, o := range of {
		if value == o {
			return true
		}
	}
	return false
}
