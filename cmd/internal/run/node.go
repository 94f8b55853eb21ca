package run

import (
	"os"
	"strings"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/proto/schema"
)

// Node is what an operator sets of a node of either role.
type Node struct {
	presence.Identity
	OpsListen string `key:"ops_listen" rule:"host:port" doc:"The node answers /metrics, /healthz and /readyz at this address, which should never be public."`
	Pprof     bool   `key:"pprof" default:"false" doc:"The ops listener answers /debug/pprof too."`
	LogLevel  string `key:"log_level" default:"info" oneof:"debug, info, warn, error" doc:"The node logs from this level on."`

	NATS    NATS    `key:"nats"`
	Etcd    Etcd    `key:"etcd"`
	Routers Routers `key:"routers"`
}

// NATS is the bus.
type NATS struct {
	URLs            []string  `key:"urls" default:"nats://127.0.0.1:4222" rule:"a URL with nats:// or tls://" doc:"These are the servers of the bus."`
	Prefix          string    `key:"prefix" default:"spillway" must:"must be a NATS subject without wildcards" doc:"All subjects begin with this. It is equal in the whole cluster."`
	CredentialsFile string    `key:"credentials_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/nats.creds" doc:"The node logs in with this .creds file."`
	User            string    `key:"user" zero:"no login" example:"spillway" doc:"The node logs in as this user."`
	PasswordFile    string    `key:"password_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/nats-password" doc:"This file holds the password of the user."`
	TLS             ClientTLS `key:"tls"`
}

// Etcd is where members are kept.
type Etcd struct {
	Endpoints    []string  `key:"endpoints" default:"http://127.0.0.1:2379" rule:"a URL with http:// or https://" doc:"These are the members of the etcd cluster."`
	Prefix       string    `key:"prefix" default:"/spillway/c1" must:"must begin with a slash" doc:"All keys begin with this. Each cluster has its own."`
	User         string    `key:"user" zero:"no login" example:"spillway" doc:"The node logs in as this user."`
	PasswordFile string    `key:"password_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/etcd-password" doc:"This file holds the password of the user."`
	TLS          ClientTLS `key:"tls"`
}

// Routers says how this node calls routers: as edge, or as router that forwards.
type Routers struct {
	KeyFile string    `key:"key_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/edge-key" doc:"This file holds an API key with the right \"edge\". It is needed where routers have keys."`
	TLS     ClientTLS `key:"tls"`
}

// DefaultNode works on one machine beside `spillway infra`.
func DefaultNode(opsListen string) Node {
	n := schema.Default[Node]()
	n.ID, _ = os.Hostname() // without a name id is asked for
	n.OpsListen = opsListen
	return n
}

// Check implements schema.Checker.
func (n *NATS) Check(p *schema.Problems) {
	if n.Prefix == "" || strings.ContainsAny(n.Prefix, "*> \t\r\n") || strings.HasPrefix(n.Prefix, "$") {
		p.Add(&n.Prefix, "must be a NATS subject without wildcards")
	}
}

// Check implements schema.Checker.
func (e *Etcd) Check(p *schema.Problems) {
	if !strings.HasPrefix(e.Prefix, "/") {
		p.Add(&e.Prefix, "must begin with a slash")
	}
}
