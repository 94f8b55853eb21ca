// Package ticket seals and opens what clients bring instead of a token: who they
// are and may what, when and where they were sent, or for which slot they were
// refused. Opening one asks nobody.
//
// Package gateway/door calls Open to choose a lane and Seal for busy; package gateway
// calls Open in connect (who) and Seal in connected, pong, refreshed and reconnect. No I/O and no goroutines;
// a Box may be used from any goroutine. The keys are the cluster's, behind Keys.
//
//	text  = base64url without padding, 1 to 1,024 characters
//	bytes = key id (4, big endian), nonce (12, random), sealed fields, tag (16)
//
// AES-256-GCM; the version of this layout and the name of the cluster are the
// associated data, so that neither another layout nor another cluster's ticket
// opens. Random nonces are good for 2^32 tickets under one key: a million clients
// with a new one each half hour need three months for it; keys are rotated long
// before.
//
// Invariants: a ticket is never good past its own life, nor past that of the token
// behind it; what Seal had no room for is missing and marked (Claims.Partial), and
// nothing is there that the token did not give; tickets and what is in them never
// reach an error text.
//
// Left out on purpose: revocation, and that a pass is good once (gateway/admission).
package ticket

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
)

const (
	// MaxChars is the longest ticket (PROTOCOL.md).
	MaxChars = 1024
	// Life is that of a ticket, unless the token behind it ends before.
	Life = time.Hour
)

var (
	// ErrNotGood is a ticket that does not open: damaged, of another cluster, of a key
	// that is not known, not a ticket at all. A caller cannot learn which.
	ErrNotGood = errors.New("ticket: not good")
	// ErrExpired is a ticket that was good.
	ErrExpired = errors.New("ticket: expired")
	// ErrNoKey says that there is no key to seal with yet.
	ErrNoKey = errors.New("ticket: no key to seal with")
	// ErrTooLarge says that not even what every ticket holds had room.
	ErrTooLarge = errors.New("ticket: too large")
)

// Kind says what a ticket is for.
type Kind uint8

const (
	// Resume stands for the identity of a client that comes back.
	Resume Kind = iota + 1
	// Moved is Resume for a client that was told to come, at its slot.
	Moved
	// Pass is the slot of a client that was refused, with or without identity. Good
	// once.
	Pass
)

func (k Kind) String() string {
	switch k {
	case Resume:
		return "resume"
	case Moved:
		return "moved"
	case Pass:
		return "pass"
	}
	return "unset"
}

// Ticket is what a ticket holds, without the rights. What Open returns is the
// caller's.
type Ticket struct {
	Kind        Kind
	HasSession  bool
	HasIdentity bool // Claims gives it; Seal sets it
	Session     [16]byte
	Edge        string    // that minted it (member id)
	Expires     time.Time // Seal: zero means Life; never after the token's

	// Moved: the operation and where it was sent. Moved, Pass: its slot.
	Operation string
	Target    string // member id; "" where edges have no address
	SlotFrom  time.Time
	SlotUntil time.Time

	// Pass: the lane it was refused in, and what tells it from others.
	Lane  uint8
	Nonce uint64

	// With HasIdentity, set by Open: what must be known before the rights.
	User         string // "": anonymous
	TokenID      string
	TokenIssued  time.Time // zero: not said
	TokenExpires time.Time // zero: never (anonymous)
	Critical     bool
	Partial      bool // rights were left out

	rights string
}

// Mark tells a ticket that is good once from all others, the same at every edge; 0: it
// is none.
func (t *Ticket) Mark() uint64 {
	switch {
	case t.Kind == Pass:
		return t.Nonce
	case t.Kind == Moved && t.HasSession:
		h := fnv.New64a()
		h.Write(t.Session[:])
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(t.SlotFrom.UnixMilli())))
		h.Write([]byte(t.Operation))
		return h.Sum64()
	}
	return 0
}

// Claims is the identity and the rights; nil without identity.
func (t *Ticket) Claims() (*auth.Claims, error) {
	if !t.HasIdentity {
		return nil, nil
	}
	c := &auth.Claims{
		Subject: t.User, ID: t.TokenID, IssuedAt: t.TokenIssued, Expires: t.TokenExpires,
		Critical: t.Critical, Partial: t.Partial,
	}
	if err := c.Restore(t.rights); err != nil {
		return nil, ErrNotGood
	}
	return c, nil
}
