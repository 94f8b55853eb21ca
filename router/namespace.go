package router

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
)

// Durability says what an acked event has survived.
type Durability uint8

const (
	Committed Durability = iota // the store has it (zero value: the safe one)
	None                        // its owner's memory has it; the store is never asked
)

func (d Durability) String() string {
	switch d {
	case Committed:
		return "committed"
	case None:
		return "none"
	}
	return fmt.Sprintf("Durability(%d)", uint8(d))
}

// Access says which clients may do something. Backends always may.
type Access uint8

const (
	Granted  Access = iota // clients whose token names the channel
	Everyone               // all clients
	Nobody                 // no client
)

func (a Access) String() string {
	switch a {
	case Granted:
		return "granted"
	case Everyone:
		return "everyone"
	case Nobody:
		return "nobody"
	}
	return fmt.Sprintf("Access(%d)", uint8(a))
}

// Namespace is the settings of the channels that begin with "name:".
type Namespace struct {
	HistorySize int           // newest events kept per channel; 0: no bound
	HistoryTTL  time.Duration // events older than this go; 0: no bound
	Durability  Durability
	Recover     bool   // missed events may be fetched; without it clients reload
	Subscribe   Access // not Nobody
	Publish     Access

	PublishPerSecond int // events that each router takes from all publishers together; 0: no limit
	PublishBurst     int // of them at once; 0: those of one second
}

// DefaultNamespace is what a namespace has that says nothing of its own.
func DefaultNamespace() Namespace {
	return Namespace{HistorySize: 1000, HistoryTTL: 24 * time.Hour, Recover: true, Publish: Nobody}
}

// bareNamespace is the name in the configuration for channels without a colon.
const bareNamespace = "default"

func (n Namespace) validate(name string, p *problems) {
	field := "namespaces." + name
	switch {
	case name == "":
		p.add("namespaces", `""`, `channels without a colon are called "default"`)
	case wire.CheckChannel(name) != nil || wire.Namespace(name) != "":
		p.add(field, name, "must be a channel name without a colon")
	}
	if n.HistorySize < 0 {
		p.add(field+".history_size", n.HistorySize, "must not be negative")
	}
	if n.HistoryTTL < 0 {
		p.add(field+".history_ttl", n.HistoryTTL, "must not be negative")
	}
	switch n.Durability {
	case Committed, None:
	default:
		p.add(field+".durability", n.Durability, "must be committed or none")
	}
	if n.PublishPerSecond < 0 {
		p.add(field+".publish_per_second", n.PublishPerSecond, "must not be negative")
	}
	if n.PublishBurst < 0 {
		p.add(field+".publish_burst", n.PublishBurst, "must not be negative")
	}
	if n.PublishBurst > 0 && n.PublishPerSecond == 0 {
		p.add(field+".publish_burst", n.PublishBurst, "needs publish_per_second")
	}
	if n.Subscribe > Everyone {
		p.add(field+".subscribe", n.Subscribe, "must be granted or everyone")
	}
	if n.Publish > Nobody {
		p.add(field+".publish", n.Publish, "must be granted, everyone or nobody")
	}
}

// maxOpenSeen bounds the open namespaces whose history is trimmed by name.
const maxOpenSeen = 10_000

// namespaces answers which settings a channel has.
type namespaces struct {
	// immutable after newNamespaces
	known map[string]*Namespace
	open  *Namespace // for every other name; nil: they are refused
	rates map[*Namespace]*rate

	seen  sync.Map // open names in use, for retention; read on every call, written once a name
	seenN atomic.Int64
}

func newNamespaces(cfg *Config) *namespaces {
	n := &namespaces{known: make(map[string]*Namespace), rates: make(map[*Namespace]*rate)}
	user := DefaultNamespace()
	n.known[wire.UserNamespace] = &user
	for name, ns := range cfg.Namespaces {
		n.known[name] = &ns
		if rate := newRate(name, &ns); rate != nil {
			n.rates[&ns] = rate
		}
	}
	if cfg.OpenNamespaces {
		open := DefaultNamespace()
		open.Subscribe, open.Publish = Everyone, Everyone
		n.open = &open
	}
	return n
}

// of returns the settings of a channel, nil if its namespace is unknown.
func (n *namespaces) of(channel string) *Namespace {
	name := wire.Namespace(channel)
	if name == "" {
		name = bareNamespace
	}
	if ns := n.known[name]; ns != nil {
		return ns
	}
	if n.open != nil {
		n.note(name)
	}
	return n.open
}

func (n *namespaces) note(name string) {
	if _, ok := n.seen.Load(name); ok || n.seenN.Load() >= maxOpenSeen {
		return
	}
	if _, ok := n.seen.LoadOrStore(name, nil); !ok {
		n.seenN.Add(1)
	}
}

// retention is what the store is asked to keep.
func (n *namespaces) retention() []history.Retention {
	var rules []history.Retention
	add := func(name string, ns *Namespace) {
		if ns.Durability == None {
			return
		}
		rules = append(rules, history.Retention{Namespace: name, Size: ns.HistorySize, TTL: ns.HistoryTTL})
		if name == bareNamespace {
			rules = append(rules, history.Retention{Namespace: "", Size: ns.HistorySize, TTL: ns.HistoryTTL})
		}
	}
	for name, ns := range n.known {
		add(name, ns)
	}
	n.seen.Range(func(name, _ any) bool {
		add(name.(string), n.open)
		return true
	})
	return rules
}
