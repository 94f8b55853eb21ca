package control

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// mirror is the key-value store as one member knows it: pure rules, under Control.mu.
// Messages are replaced, never changed.
type mirror struct {
	revision  int64             // of the last listing or event; a listing below it went back
	revisions map[string]int64  // of each record in the store; 0: it is to be written back
	sums      map[string]uint64 // of their values: a listing decodes only what is new to us
	dirty     map[string]bool   // records that differ in a store that went back
	stale     map[string]bool   // revocations in the store whose time is over

	keys       map[string]*gatewayv1.TicketKey // by name
	operations map[string]*gatewayv1.Operation // by name
	settings   *gatewayv1.Settings
	bad        *revocations

	out output
}

// output is what inputs since the last one did.
type output struct {
	keys, operations, settings bool // they changed
	listed, wentBack, dirty    bool
	unreadable                 int
	revoked                    []*gatewayv1.Revocation // new ones
}

func newMirror(bad *revocations) *mirror {
	return &mirror{
		revisions: make(map[string]int64), sums: make(map[string]uint64), dirty: make(map[string]bool), stale: make(map[string]bool),
		keys: make(map[string]*gatewayv1.TicketKey), operations: make(map[string]*gatewayv1.Operation),
		settings: &gatewayv1.Settings{}, bad: bad,
	}
}

func (m *mirror) output() output {
	out := m.out
	m.out = output{}
	return out
}

// take takes news from the key-value store. A write of our own is put: it may come
// before a listing that is older, which has not gone back for that.
func (m *mirror) take(c Change, now time.Time) {
	switch {
	case c.Listed:
		m.list(c.List, c.Revision, now)
		m.revision = c.Revision
		return
	case c.Put != nil:
		m.put(*c.Put, now)
	case c.Deleted != "" && m.revisions[c.Deleted] < c.Revision:
		m.drop(c.Deleted)
	}
	m.revision = max(m.revision, c.Revision)
}

// list takes all that there is. A store that went back has forgotten: what we know
// stays, and what differs is written back.
func (m *mirror) list(records []Record, revision int64, now time.Time) {
	back := revision < m.revision
	m.out.listed, m.out.wentBack = true, m.out.wentBack || back
	old, wasDirty := m.revisions, m.dirty
	m.revisions = make(map[string]int64, len(records))
	m.dirty = make(map[string]bool)
	for _, r := range records {
		ours := back || wasDirty[r.Name] // not yet written back
		if !ours && old[r.Name] == r.Revision && m.sums[r.Name] == xxhash.Sum64(r.Value) {
			m.revisions[r.Name] = r.Revision
			continue
		}
		folder, _ := split(r.Name)
		if have := m.get(r.Name); ours && folder != FolderKeys && have != nil && !proto.Equal(have, decode(r)) {
			m.revisions[r.Name] = r.Revision
			m.markDirty(r.Name)
			continue
		}
		m.put(r, now)
	}
	for name := range old {
		if _, still := m.revisions[name]; still {
			continue
		}
		if (back || wasDirty[name]) && m.get(name) != nil {
			m.revisions[name] = 0
			m.markDirty(name)
		} else {
			m.drop(name)
		}
	}
}

func (m *mirror) markDirty(name string) { m.dirty[name], m.out.dirty = true, true }

// put takes one record, if it is newer than what we have.
func (m *mirror) put(r Record, now time.Time) {
	if m.revisions[r.Name] >= r.Revision {
		return
	}
	m.revisions[r.Name], m.sums[r.Name] = r.Revision, xxhash.Sum64(r.Value)
	delete(m.dirty, r.Name)
	delete(m.stale, r.Name)
	switch message := decode(r).(type) {
	case *gatewayv1.TicketKey:
		if old := m.keys[r.Name]; old != nil && older(old, message) {
			m.markDirty(r.Name)
			return
		}
		m.keys[r.Name], m.out.keys = message, true
	case *gatewayv1.Operation:
		if old := m.operations[r.Name]; old != nil && !allowed(old, message) {
			m.markDirty(r.Name) // the end is for ever
			return
		}
		m.operations[r.Name], m.out.operations = message, true
	case *gatewayv1.Settings:
		m.settings, m.out.settings = message, true
	case *gatewayv1.Revocation:
		if over(message, now) {
			m.stale[r.Name] = true
		}
		m.revocation(message, now)
	default:
		m.out.unreadable++
	}
}

// revocation takes one from anywhere.
func (m *mirror) revocation(r *gatewayv1.Revocation, now time.Time) {
	if over(r, now) {
		return
	}
	if old := m.bad.byID[r.Id]; old != nil && old.IssuedBeforeMs > r.IssuedBeforeMs {
		return // told late
	}
	if m.bad.put(r) {
		m.out.revoked = append(m.out.revoked, r)
	}
}

// drop takes the end of a record.
func (m *mirror) drop(name string) {
	delete(m.revisions, name)
	delete(m.sums, name)
	delete(m.dirty, name)
	delete(m.stale, name)
	switch folder, id := split(name); folder {
	case FolderKeys:
		delete(m.keys, name)
		m.out.keys = true
	case FolderOperations:
		delete(m.operations, name)
		m.out.operations = true
	case FolderSettings:
		if name == settingsName {
			m.settings, m.out.settings = &gatewayv1.Settings{}, true
		}
	case FolderRevocations:
		m.bad.drop(id)
	}
}

// get is what we know under a name; nil: nothing.
func (m *mirror) get(name string) proto.Message {
	switch folder, id := split(name); folder {
	case FolderKeys:
		if k := m.keys[name]; k != nil {
			return k
		}
	case FolderOperations:
		if op := m.operations[name]; op != nil {
			return op
		}
	case FolderRevocations:
		if r := m.bad.byID[id]; r != nil {
			return r
		}
	case FolderSettings:
		if name == settingsName && m.settings.ChangedMs != 0 {
			return m.settings
		}
	}
	return nil
}

// sorted are the operations by start.
func (m *mirror) sorted() []*gatewayv1.Operation {
	return sortOperations(slices.Collect(maps.Values(m.operations)))
}

func encode(message proto.Message) ([]byte, error) {
	value, err := protojson.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	if len(value) > maxOperationBytes {
		return nil, fmt.Errorf("a record has %d bytes, at most %d are kept", len(value), maxOperationBytes)
	}
	return value, nil
}

// decode reads a record; nil: there is none, it is not readable, or it belongs
// under another name.
func decode(r Record) proto.Message {
	if r.Revision == 0 || len(r.Value) > maxOperationBytes {
		return nil
	}
	folder, id := split(r.Name)
	read := func(message proto.Message) bool {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(r.Value, message) == nil
	}
	switch folder {
	case FolderKeys:
		k := new(gatewayv1.TicketKey)
		if read(k) && strconv.FormatUint(uint64(k.Id), 10) == id && k.Id != 0 && len(k.Key) == KeyBytes {
			return k
		}
	case FolderOperations:
		op := new(gatewayv1.Operation)
		if read(op) && op.Id == id {
			return op
		}
	case FolderRevocations:
		r := new(gatewayv1.Revocation)
		if read(r) && r.Id == id && checkRevocation(r) == nil {
			return r
		}
	case FolderSettings:
		s := new(gatewayv1.Settings)
		if id == "gateway" && read(s) {
			return s
		}
	}
	return nil
}
