// Package namespace holds the settings of channels, which are made for all channels
// whose name begins with "name:" together: how long their history is kept, what an
// ack has survived, who may subscribe and publish, how fast.
//
// The api admits calls by them, the machine of a channel works by them, retention
// deletes by them; the root makes the Set from the configuration. It starts no
// goroutine and does no I/O. A Set may be used from any goroutine.
//
// Left out on purpose: how the settings are read from a file (cmd), and how a rate is
// counted (router/api).
package namespace

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
)

// Durability says what an acked event has survived.
type Durability uint8

// The durabilities.
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

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Durability) UnmarshalText(text []byte) error {
	if string(text) == "async" {
		return errors.New("exists no more: choose committed if events must survive their router, none if they need not")
	}
	return schema.Word(text, d, Committed, None)
}

// Access says which clients may do something. Backends always may.
type Access uint8

// The accesses.
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

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Access) UnmarshalText(text []byte) error {
	return schema.Word(text, a, Granted, Everyone, Nobody)
}

// Namespace is the settings of the channels that begin with "name:".
type Namespace struct {
	HistorySize int           `key:"history_size" default:"1,000" unit:"events" rule:"not negative" zero:"no bound" doc:"So many of the newest events of each channel are kept."`
	HistoryTTL  time.Duration `key:"history_ttl" default:"24h" rule:"not negative" zero:"no bound" doc:"Events are kept so long."`
	Durability  Durability    `key:"durability" default:"committed" oneof:"committed, none" doc:"An event is acked when the store has it (committed), or it is never stored (none)."`
	Recover     bool          `key:"recover" default:"true" doc:"Clients may fetch the events that they missed. Without it they reload their state."`
	Subscribe   Access        `key:"subscribe" default:"granted" oneof:"granted, everyone" doc:"Clients whose token names the channel may subscribe (granted), or all may (everyone)."`
	Publish     Access        `key:"publish" default:"nobody" oneof:"granted, everyone, nobody" doc:"Clients whose token names the channel may publish (granted), all may (everyone), or backends only (nobody)."`

	PublishPerSecond int `key:"publish_per_second" default:"0" unit:"events per second" rule:"not negative" zero:"no limit" doc:"Each router takes so many events from all publishers of the namespace together."`
	PublishBurst     int `key:"publish_burst" default:"0" unit:"events" rule:"not negative" zero:"those of one second" doc:"Each router takes so many of them at once. It needs publish_per_second."`
}

// Default is what a namespace has that says nothing of its own.
func Default() Namespace { return schema.Default[Namespace]() }

// Check implements schema.Checker.
func (n *Namespace) Check(p *schema.Problems) {
	if n.PublishBurst > 0 && n.PublishPerSecond == 0 {
		p.Add(&n.PublishBurst, "needs publish_per_second")
	}
}

// CheckName says what is wrong with the name of a namespace; "": nothing.
func CheckName(name string) (rule string) {
	switch {
	case name == "":
		return `channels without a colon are called "default"`
	case wire.CheckChannel(name) != nil || wire.Namespace(name) != "":
		return "must be a channel name without a colon"
	}
	return ""
}

// Bare is the name in the configuration for channels without a colon.
const Bare = "default"

// maxOpenSeen bounds the open namespaces whose history is trimmed by name.
const maxOpenSeen = 10_000

// Set answers which settings a channel has.
type Set struct {
	// immutable after NewSet
	known map[string]*Namespace
	open  *Namespace // for every other name; nil: they are refused

	seen  sync.Map // open names in use, for retention; read on every call, written once a name
	count atomic.Int64
}

// NewSet takes the configured namespaces; open lets every other name work too, for
// every client.
func NewSet(configured map[string]Namespace, open bool) *Set {
	s := &Set{known: make(map[string]*Namespace)}
	user := Default()
	s.known[wire.UserNamespace] = &user
	for name, ns := range configured {
		s.known[name] = &ns
	}
	if open {
		ns := Default()
		ns.Subscribe, ns.Publish = Everyone, Everyone
		s.open = &ns
	}
	return s
}

// Known calls f for each namespace that has a name.
func (s *Set) Known(f func(name string, ns *Namespace)) {
	for name, ns := range s.known {
		f(name, ns)
	}
}

// Of returns the settings of a channel, nil if its namespace is unknown.
func (s *Set) Of(channel string) *Namespace {
	name := wire.Namespace(channel)
	if name == "" {
		name = Bare
	}
	if ns := s.known[name]; ns != nil {
		return ns
	}
	if s.open != nil {
		s.note(name)
	}
	return s.open
}

func (s *Set) note(name string) {
	if _, ok := s.seen.Load(name); ok || s.count.Load() >= maxOpenSeen {
		return
	}
	if _, ok := s.seen.LoadOrStore(name, nil); !ok {
		s.count.Add(1)
	}
}

// Retention is what the store is asked to keep.
func (s *Set) Retention() []history.Retention {
	var rules []history.Retention
	add := func(name string, ns *Namespace) {
		if ns.Durability == None {
			return
		}
		rules = append(rules, history.Retention{Namespace: name, Size: ns.HistorySize, TTL: ns.HistoryTTL})
		if name == Bare {
			rules = append(rules, history.Retention{Namespace: "", Size: ns.HistorySize, TTL: ns.HistoryTTL})
		}
	}
	s.Known(add)
	s.seen.Range(func(name, _ any) bool {
		add(name.(string), s.open)
		return true
	})
	return rules
}
