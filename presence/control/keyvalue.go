package control

import (
	"context"
	"strings"
)

// Folders of the key-value store; a record is called folder, '/', id.
const (
	FolderKeys        = "ticket-keys"
	FolderRevocations = "revocations"
	FolderOperations  = "operations"
	FolderSettings    = "settings"
)

// Folders are all of them.
func Folders() []string {
	return []string{FolderKeys, FolderRevocations, FolderOperations, FolderSettings}
}

// Record is one value in the key-value store.
type Record struct {
	Name     string // folder, '/', id
	Value    []byte // not to be changed
	Revision int64  // of the key-value store, at its last write
}

// Change is news from the key-value store: all that there is, or one record put or gone.
type Change struct {
	Listed bool // List is all that there is
	List   []Record

	Put      *Record
	Deleted  string // a name
	Revision int64  // of the key-value store, after the change
}

// If is what must be true for a Put.
type If struct {
	Revision int64 // the record is the one of this revision; 0: there is none
	Quiet    int64 // not 0: nothing in its folder was written after this revision
}

// KeyValue is a key-value store of records, without leases. Every call but Follow ends by itself within seconds; an error
// leaves open whether the write was done. All may be called from any goroutine.
type KeyValue interface {
	// Follow lists, then tells what changes, until ctx ends. It survives any absence of
	// the store, and lists again whenever it may have missed something. changed is
	// called from one goroutine.
	Follow(ctx context.Context, changed func(Change)) error
	// List is every record whose name begins so, as it is now, and the store's revision.
	List(ctx context.Context, prefix string) ([]Record, int64, error)
	// Put writes if cond is true; done tells whether it was, revision the write's.
	Put(ctx context.Context, name string, value []byte, cond If) (revision int64, done bool, err error)
	// Delete removes the record of this revision; if there is another or none, it does
	// nothing.
	Delete(ctx context.Context, name string, revision int64) error
}

// Messenger brings messages to all members at once, if it can; presence/nats has one.
// What it loses comes by the key-value store.
type Messenger interface {
	// Broadcast never blocks.
	Broadcast(topic string, message []byte) error
	// Listen calls heard from one goroutine until ctx ends.
	Listen(ctx context.Context, topic string, heard func(message []byte)) error
}

// split cuts a name into folder and id.
func split(name string) (folder, id string) {
	folder, id, _ = strings.Cut(name, "/")
	return folder, id
}
