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

// Default is what a namespace has that says nothing of its own.
func Default() Namespace {
	return Namespace{HistorySize: 1000, HistoryTTL: 24 * time.Hour, Recover: true, Publish: Nobody}
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

// Validate reports all problems of a namespace as "field: value: rule".
func (n Namespace) Validate(name string) error {
	var problems []error
	add := func(field string, value any, rule string) {
		problems = append(problems, fmt.Errorf("%s: %v: %s", field, value, rule))
	}
	field := "namespaces." + name
	switch {
	case name == "":
		add("namespaces", `""`, `channels without a colon are called "default"`)
	case wire.CheckChannel(name) != nil || wire.Namespace(name) != "":
		add(field, name, "must be a channel name without a colon")
	}
	if n.HistorySize < 0 {
		add(field+".history_size", n.HistorySize, "must not be negative")
	}
	if n.HistoryTTL < 0 {
		add(field+".history_ttl", n.HistoryTTL, "must not be negative")
	}
	if n.Durability != Committed && n.Durability != None {
		add(field+".durability", n.Durability, "must be committed or none")
	}
	if n.PublishPerSecond < 0 {
		add(field+".publish_per_second", n.PublishPerSecond, "must not be negative")
	}
	if n.PublishBurst < 0 {
		add(field+".publish_burst", n.PublishBurst, "must not be negative")
	}
	if n.PublishBurst > 0 && n.PublishPerSecond == 0 {
		add(field+".publish_burst", n.PublishBurst, "needs publish_per_second")
	}
	if n.Subscribe > Everyone {
		add(field+".subscribe", n.Subscribe, "must be granted or everyone")
	}
	if n.Publish > Nobody {
		add(field+".publish", n.Publish, "must be granted, everyone or nobody")
	}
	return errors.Join(problems...)
}
