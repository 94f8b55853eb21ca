package channel

import "github.com/spillway-io/spillway/router/history"

// recentKeysMax bounds the idempotency keys that a channel without a store remembers.
const recentKeysMax = 256

// keyBytes is what a recent key costs beside its strings.
const keyBytes = 112

// recentKeys is the newest idempotency keys of a channel that memory numbers, oldest
// first out. The nil pointer has none.
type recentKeys struct {
	offsets map[history.Key]uint64
	order   []history.Key
	bytes   int64
}

func newRecentKeys() *recentKeys { return &recentKeys{offsets: make(map[history.Key]uint64)} }

func (k *recentKeys) size() int64 {
	if k == nil {
		return 0
	}
	return k.bytes
}

// offset is that of the event that came with a key.
func (k *recentKeys) offset(key history.Key) (offset uint64, ok bool) {
	if k == nil {
		return 0, false
	}
	offset, ok = k.offsets[key]
	return offset, ok
}

func (k *recentKeys) put(key history.Key, offset uint64) {
	if len(k.order) == recentKeysMax {
		oldest := k.order[0]
		k.order = k.order[1:]
		delete(k.offsets, oldest)
		k.bytes -= recentKeySize(oldest)
	}
	k.offsets[key] = offset
	k.order = append(k.order, key)
	k.bytes += recentKeySize(key)
}

func recentKeySize(k history.Key) int64 { return keyBytes + int64(len(k.Scope)+len(k.Key)) }
