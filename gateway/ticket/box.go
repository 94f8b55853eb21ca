package ticket

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
)

const (
	keyIDBytes = 4
	overhead   = keyIDBytes + 12 + 16 // key id, nonce, tag
	maxBytes   = MaxChars / 4 * 3
	maxFields  = maxBytes - overhead
	layout     = "spillway ticket 1\x00" // in front of the cluster's name
	keyBytes   = 32
	maxCiphers = 8 // the ring has few keys; older ones are made again
)

// strict: one text for a ticket, not four that differ in unused bits.
var strict = base64.RawURLEncoding.Strict()

// Keys is the ring of a cluster. Its methods do not block and may be called from
// any goroutine; the keys they return are not changed by either side.
type Keys interface {
	// Mint is the key to seal with at a moment; false: there is none yet.
	Mint(now time.Time) (id uint32, key []byte, ok bool)
	// Key is any key that still opens.
	Key(id uint32) (key []byte, ok bool)
}

// Box seals and opens the tickets of one cluster.
type Box struct {
	// immutable after New
	keys Keys
	data []byte // associated

	// atomic; the list it points to is never changed
	ciphers atomic.Pointer[[]keyed]
}

// keyed is a key that is ready for use: to expand one costs more than a ticket.
type keyed struct {
	id   uint32
	key  []byte
	aead cipher.AEAD
}

// New makes a Box for the cluster of that name (its etcd prefix).
func New(cluster string, keys Keys) *Box {
	return &Box{keys: keys, data: []byte(layout + cluster)}
}

// scratch is the buffers of one call.
type scratch struct {
	text  []byte
	bytes []byte
	plain []byte
}

var scratches = sync.Pool{New: func() any {
	return &scratch{make([]byte, 0, MaxChars), make([]byte, 0, maxBytes), make([]byte, 0, maxFields)}
}}

// Seal makes the text of a ticket. claims, if not nil, are sealed in; of their
// rights only those that have room.
func (b *Box) Seal(t Ticket, claims *auth.Claims, now time.Time) (string, error) {
	id, key, ok := b.keys.Mint(now)
	if !ok {
		return "", ErrNoKey
	}
	aead := b.cipher(id, key)
	if aead == nil {
		return "", ErrNoKey
	}
	if t.Expires.IsZero() {
		t.Expires = now.Add(Life)
	}
	t.describe(claims)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.plain = t.appendFields(s.plain[:0], claims)
	if len(s.plain) > maxFields {
		return "", ErrTooLarge
	}
	s.bytes = binary.BigEndian.AppendUint32(s.bytes[:0], id)
	s.bytes = aead.Seal(s.bytes, nil, s.plain, b.data)
	s.text = strict.AppendEncode(s.text[:0], s.bytes)
	return string(s.text), nil
}

// describe puts what stands beside the rights into t.
func (t *Ticket) describe(claims *auth.Claims) {
	if t.HasIdentity = claims != nil; !t.HasIdentity {
		return
	}
	t.User, t.TokenID, t.TokenIssued, t.TokenExpires = claims.Subject, claims.ID, claims.IssuedAt, claims.Expires
	t.Critical = claims.Critical
	if !t.TokenExpires.IsZero() && t.TokenExpires.Before(t.Expires) {
		t.Expires = t.TokenExpires
	}
}

// Open returns what a ticket holds, or ErrNotGood, or ErrExpired.
func (b *Box) Open(text string, now time.Time) (*Ticket, error) {
	if len(text) > MaxChars || strict.DecodedLen(len(text)) < overhead {
		return nil, ErrNotGood
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.text = append(s.text[:0], text...)
	var err error
	s.bytes, err = strict.AppendDecode(s.bytes[:0], s.text)
	if err != nil || strict.EncodedLen(len(s.bytes)) != len(text) { // encoding/base64 skips CR and LF
		return nil, ErrNotGood
	}
	id := binary.BigEndian.Uint32(s.bytes)
	key, ok := b.keys.Key(id)
	if !ok {
		return nil, ErrNotGood
	}
	aead := b.cipher(id, key)
	if aead == nil {
		return nil, ErrNotGood
	}
	s.plain, err = aead.Open(s.plain[:0], nil, s.bytes[keyIDBytes:], b.data)
	if err != nil {
		s.plain = make([]byte, 0, maxFields)
		return nil, ErrNotGood
	}
	t := new(Ticket)
	if !t.readFields(string(s.plain)) {
		return nil, ErrNotGood
	}
	if !t.GoodAt(now) {
		return nil, ErrExpired
	}
	return t, nil
}

// GoodAt says whether neither the ticket nor the token behind it has expired.
func (t *Ticket) GoodAt(now time.Time) bool {
	return now.Before(t.Expires) && (t.TokenExpires.IsZero() || now.Before(t.TokenExpires))
}

// cipher returns the cipher of a key, made when it is first asked for.
func (b *Box) cipher(id uint32, key []byte) cipher.AEAD {
	have := b.ciphers.Load()
	if have != nil {
		for _, k := range *have {
			if k.id == id && bytes.Equal(k.key, key) {
				return k.aead
			}
		}
	}
	if len(key) != keyBytes {
		return nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil
	}
	// The newest first. Who loses the race makes it once more: harmless.
	list := []keyed{{id, bytes.Clone(key), aead}}
	if have != nil {
		for _, k := range *have {
			if k.id != id && len(list) < maxCiphers {
				list = append(list, k)
			}
		}
	}
	b.ciphers.CompareAndSwap(have, &list)
	return aead
}
