package control

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// disconnectLife is how long a disconnect is told to members that were away.
	disconnectLife = 10 * time.Minute
	// forgetMargin is kept beyond the life of what a revocation is about, for clocks
	// that differ.
	forgetMargin = 5 * time.Minute
	// foldMargin is added to the moment of a token's revocation that is folded: its
	// issuer's clock may be ahead of ours.
	foldMargin = time.Minute
	// maxTextBytes bounds user, token id, session and reason.
	maxTextBytes = 1024
)

// Default close codes.
const (
	codeDisconnect  = 4000
	codeCredentials = 4100
)

// tokenKey names one token.
type tokenKey struct{ user, token string }

// revocations are those in force. Reads take no lock.
type revocations struct {
	tokens sync.Map // tokenKey -> struct{}
	before sync.Map // user -> int64, Unix milliseconds
	count  atomic.Int64

	byID map[string]*gatewayv1.Revocation // by the one who changes them, under Control.mu
	many int                              // of byID, those of single tokens
}

func newRevocations() *revocations {
	return &revocations{byID: make(map[string]*gatewayv1.Revocation)}
}

// revoked says whether a token, or a ticket made from it, is bad. A token that does
// not say when it was issued counts as issued long ago. Tokens say it in whole
// seconds, rounded down: those of the very second of a revocation are bad too.
func (s *revocations) revoked(user, token string, issued time.Time) bool {
	if token != "" {
		if _, bad := s.tokens.Load(tokenKey{user, token}); bad {
			return true
		}
	}
	before, bad := s.before.Load(user)
	return bad && issued.UnixMilli() < before.(int64)
}

// put takes a record; news: it says something that was not known.
func (s *revocations) put(r *gatewayv1.Revocation) (news bool) {
	old := s.byID[r.Id]
	if old != nil && proto.Equal(old, r) {
		return false
	}
	if old != nil {
		s.drop(r.Id)
	}
	s.byID[r.Id] = r
	s.count.Store(int64(len(s.byID)))
	switch {
	case r.TokenId != "":
		s.many++
		s.tokens.Store(tokenKey{r.User, r.TokenId}, struct{}{})
	case r.IssuedBeforeMs != 0:
		s.before.Store(r.User, int64(r.IssuedBeforeMs))
	}
	return true
}

func (s *revocations) drop(id string) {
	r := s.byID[id]
	if r == nil {
		return
	}
	delete(s.byID, id)
	s.count.Store(int64(len(s.byID)))
	switch {
	case r.TokenId != "":
		s.many--
		s.tokens.Delete(tokenKey{r.User, r.TokenId})
	case r.IssuedBeforeMs != 0:
		s.before.Delete(r.User)
	}
}

// over lists those that may be forgotten.
func (s *revocations) over(now time.Time) []string {
	var ids []string
	for id, r := range s.byID {
		if over(r, now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// over says that a revocation may be forgotten.
func over(r *gatewayv1.Revocation, now time.Time) bool { return int64(r.ExpiresMs) <= now.UnixMilli() }

// checkRevocation says what is wrong with one; nil: nothing.
func checkRevocation(r *gatewayv1.Revocation) error {
	about := 0
	for _, is := range []bool{r.TokenId != "", r.IssuedBeforeMs != 0, r.Session != "", r.DisconnectUser} {
		if is {
			about++
		}
	}
	switch {
	case about != 1:
		return errors.New("exactly one of token id, issued-before, session and disconnect of the user must be given")
	case r.Session == "" && r.User == "":
		return errors.New("the user must be given")
	case len(r.User) > maxTextBytes || len(r.TokenId) > maxTextBytes || len(r.Session) > maxTextBytes || len(r.Reason) > maxTextBytes:
		return errors.New("user, token id, session and reason may have 1024 bytes each")
	case r.CloseCode < 4000 || r.CloseCode > 4299:
		return errors.New("the close code must be between 4000 and 4299")
	}
	return nil
}

// fill completes a record: what is about the same token or user has the same id, so
// that a repeat replaces it.
func fill(r *gatewayv1.Revocation, now time.Time, tokenLife time.Duration) {
	if r.CreatedMs == 0 {
		r.CreatedMs = uint64(now.UnixMilli())
	}
	life := tokenLife + forgetMargin
	switch {
	case r.TokenId != "":
		r.Id = digest("token", r.User, r.TokenId)
	case r.IssuedBeforeMs != 0:
		r.Id = digest("before", r.User)
		life += max(0, time.UnixMilli(int64(r.IssuedBeforeMs)).Sub(now))
	default:
		r.Id, life = "disconnect-"+rand.Text(), disconnectLife
	}
	if r.ExpiresMs == 0 {
		r.ExpiresMs = r.CreatedMs + uint64(life.Milliseconds())
	}
	if r.CloseCode == 0 {
		r.CloseCode = codeCredentials
		if r.Session != "" || r.DisconnectUser {
			r.CloseCode = codeDisconnect
		}
	}
}

// merge brings a repeat together with what is in force: neither loses.
func merge(r, old *gatewayv1.Revocation) {
	r.IssuedBeforeMs = max(r.IssuedBeforeMs, old.IssuedBeforeMs)
	r.ExpiresMs = max(r.ExpiresMs, old.ExpiresMs)
}

// fold turns the revocation of a token into that of all that its user has.
func fold(r *gatewayv1.Revocation) {
	r.IssuedBeforeMs = r.CreatedMs + uint64(foldMargin.Milliseconds())
	r.TokenId = ""
	r.Id = digest("before", r.User)
}

func digest(kind string, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte{byte(len(p) >> 8), byte(len(p))})
		h.Write([]byte(p))
	}
	return kind + "-" + hex.EncodeToString(h.Sum(nil)[:16])
}
