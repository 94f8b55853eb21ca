// Package controltest has a key-value store in memory, for tests of what is built on
// one. Nothing that serves imports it.
//
// A Store is what etcd would be, a KeyValue one member's connection to it, which can be
// cut and joined again. Follow has no goroutine of its own.
package controltest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spillway-io/spillway/presence/control"
)

// ErrAway is what a KeyValue that was cut off answers.
var ErrAway = errors.New("the key-value store is away")

// Store holds records.
type Store struct {
	mu       sync.Mutex // guards below
	records  map[string]control.Record
	revision int64
	writes   int
	members  []*KeyValue
}

// NewStore makes an empty one.
func NewStore() *Store { return &Store{records: make(map[string]control.Record), revision: 1} }

// Image is a copy of a Store's content.
type Image struct {
	records  map[string]control.Record
	revision int64
}

// Save copies what the store has.
func (s *Store) Save() Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Image{maps.Clone(s.records), s.revision}
}

// Restore brings an older state back, as from a backup; the zero Image wipes.
func (s *Store) Restore(i Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.revision = maps.Clone(i.records), max(1, i.revision)
	if s.records == nil {
		s.records = make(map[string]control.Record)
	}
	for _, kv := range s.members {
		kv.relistLocked()
	}
}

// Set writes a record whatever is there, as an operator might; nil deletes.
func (s *Store) Set(name string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeLocked(name, value)
}

// Names lists the records.
func (s *Store) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.records))
}

// Value is one record's, nil if there is none.
func (s *Store) Value(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[name].Value
}

// Writes counts the writes that were done.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *Store) writeLocked(name string, value []byte) {
	s.revision++
	s.writes++
	change := control.Change{Deleted: name, Revision: s.revision}
	if value == nil {
		delete(s.records, name)
	} else {
		r := control.Record{Name: name, Value: value, Revision: s.revision}
		s.records[name] = r
		change = control.Change{Put: &r, Revision: s.revision}
	}
	for _, kv := range s.members {
		if !kv.away {
			kv.news = append(kv.news, change)
			kv.wakeLocked()
		}
	}
}

// Join makes a member's way to the store.
func (s *Store) Join() *KeyValue {
	s.mu.Lock()
	defer s.mu.Unlock()
	kv := &KeyValue{store: s, wake: make(chan struct{}, 1)}
	s.members = append(s.members, kv)
	return kv
}

// KeyValue implements control.KeyValue for one member; Follow may be called once at a time.
type KeyValue struct {
	store *Store
	wake  chan struct{}

	// guarded by store.mu
	away bool
	news []control.Change
}

var _ control.KeyValue = (*KeyValue)(nil)

// Away cuts the member off, or joins it again.
func (s *KeyValue) Away(away bool) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.away = away
	s.relistLocked()
}

func (s *KeyValue) relistLocked() {
	s.news = nil
	if !s.away {
		s.news = []control.Change{{Listed: true, List: s.store.listLocked(""), Revision: s.store.revision}}
	}
	s.wakeLocked()
}

func (s *KeyValue) wakeLocked() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Store) listLocked(prefix string) []control.Record {
	var list []control.Record
	for _, name := range slices.Sorted(maps.Keys(s.records)) {
		if strings.HasPrefix(name, prefix) {
			list = append(list, s.records[name])
		}
	}
	return list
}

// Follow implements control.KeyValue.
func (s *KeyValue) Follow(ctx context.Context, changed func(control.Change)) error {
	s.store.mu.Lock()
	s.relistLocked()
	s.store.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		s.store.mu.Lock()
		news := s.news
		s.news = nil
		s.store.mu.Unlock()
		for _, c := range news {
			changed(c)
		}
	}
}

// List implements control.KeyValue.
func (s *KeyValue) List(_ context.Context, prefix string) ([]control.Record, int64, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.away {
		return nil, 0, ErrAway
	}
	return s.store.listLocked(prefix), s.store.revision, nil
}

// Put implements control.KeyValue.
func (s *KeyValue) Put(_ context.Context, name string, value []byte, cond control.If) (int64, bool, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.away {
		return 0, false, ErrAway
	}
	if s.store.records[name].Revision != cond.Revision {
		return s.store.revision, false, nil
	}
	folder, _, _ := strings.Cut(name, "/")
	for _, r := range s.store.listLocked(folder + "/") {
		if cond.Quiet != 0 && r.Revision > cond.Quiet {
			return s.store.revision, false, nil
		}
	}
	s.store.writeLocked(name, slices.Clone(value))
	return s.store.revision, true, nil
}

// Delete implements control.KeyValue.
func (s *KeyValue) Delete(_ context.Context, name string, revision int64) error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.away {
		return ErrAway
	}
	if r, ok := s.store.records[name]; ok && r.Revision == revision {
		s.store.writeLocked(name, nil)
	}
	return nil
}
