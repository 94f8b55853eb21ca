package control

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// KeyBytes is the length of a ticket key.
	KeyBytes = 32
	// spreadKey is what a new key waits before it mints, so that every member can open
	// what it seals.
	spreadKey = time.Minute
	// keyMargin is kept beyond the life of the last ticket under a key.
	keyMargin = 15 * time.Minute
	// maxKeys bounds the ring: a rotation past it has to wait for a deletion.
	maxKeys = 16
)

// ringKey is one key as this process knows it.
type ringKey struct {
	id      uint32
	key     []byte
	created time.Time // by the clock of its maker
	seen    time.Time // first, by ours
}

// age is the longer of what the maker's clock says and what this process has seen
// itself: a key from the future must not rest until its time has come.
func (k *ringKey) age(now time.Time) time.Duration {
	return max(now.Sub(k.created), now.Sub(k.seen))
}

// ring holds the keys by id; immutable.
//
//	created --60 s--> mints --successor is 60 s old--> opens --ticket life + margin--> deleted
type ring []ringKey

// ringOf makes a ring of records; what was seen before keeps its time.
func ringOf(keys map[string]*gatewayv1.TicketKey, before ring, now time.Time) ring {
	r := make(ring, 0, len(keys))
	for _, k := range keys {
		seen := now
		if old := before.find(k.Id); old != nil && string(old.key) == string(k.Key) {
			seen = old.seen
		}
		r = append(r, ringKey{k.Id, k.Key, time.UnixMilli(int64(k.CreatedMs)), seen})
	}
	slices.SortFunc(r, func(a, b ringKey) int { return int(int64(a.id) - int64(b.id)) })
	return r
}

func (r ring) find(id uint32) *ringKey {
	for i := range r {
		if r[i].id == id {
			return &r[i]
		}
	}
	return nil
}

// mint is the newest key that every member knows by now. If there is none it is the
// oldest: the first key of a cluster mints at once.
func (r ring) mint(now time.Time) *ringKey {
	for i := len(r) - 1; i >= 0; i-- {
		if r[i].age(now) >= spreadKey {
			return &r[i]
		}
	}
	if len(r) > 0 {
		return &r[0]
	}
	return nil
}

// due says whether a new key has to be made.
func (r ring) due(now time.Time, rotate time.Duration) bool {
	return len(r) == 0 || len(r) < maxKeys && r[len(r)-1].age(now) >= rotate
}

// next is the id of the next key.
func (r ring) next() uint32 {
	if len(r) == 0 {
		return 1
	}
	return r[len(r)-1].id + 1
}

// over lists the keys under which no ticket can live any more: their successor has
// minted for longer than a ticket lives, both by its maker's clock and by what this
// process has seen itself.
func (r ring) over(now time.Time, life time.Duration) []uint32 {
	var ids []uint32
	for i := 0; i+1 < len(r); i++ {
		successor := &r[i+1]
		if min(now.Sub(successor.created), now.Sub(successor.seen)) >= spreadKey+life+keyMargin {
			ids = append(ids, r[i].id)
		}
	}
	return ids
}

// older says which of two keys with one id stays: in a store that was wiped a member that
// knows nothing makes a first key anew.
func older(a, b *gatewayv1.TicketKey) bool {
	if a.CreatedMs != b.CreatedMs {
		return a.CreatedMs < b.CreatedMs
	}
	return bytes.Compare(a.Key, b.Key) < 0
}

func keyName(id uint32) string { return FolderKeys + "/" + strconv.FormatUint(uint64(id), 10) }
