package auth

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// Right is what a token lets a client do on a channel. A set is their sum.
type Right uint8

const (
	Subscribe Right = 1 << iota
	Publish
	History
	Presence
)

// Read is what a pattern without a list of rights gives.
const Read = Subscribe | History | Presence

const all = Read | Publish

var rightNames = map[string]Right{"subscribe": Subscribe, "publish": Publish, "history": History, "presence": Presence}

// Bounds of one token.
const (
	MaxTokenBytes   = 8 << 10
	MaxSubjectBytes = 128
	MaxPatterns     = 256
	MaxJoin         = 256
)

// Claims is what a good token says. Immutable.
type Claims struct {
	Subject  string    // the user; "" for anonymous clients
	Expires  time.Time // zero: never (anonymous)
	IssuedAt time.Time // zero: not said
	ID       string    // jti
	Join     []string  // channels joined at connect
	Critical bool      // tier "critical": goes first when an edge leaves
	Info     json.RawMessage
	Partial  bool // of a ticket that had no room for all rights: the token gives more

	exact    map[string]Right
	prefixes []prefix
	own      string
}

type prefix struct {
	text   string
	rights Right
}

// Anonymous is what clients without a token have in dev mode: every right, no name.
func Anonymous() *Claims {
	return &Claims{prefixes: []prefix{{"", all}}}
}

// Allows says whether the claims give a right on a channel. A user's own channel
// may always be read; other users' only by a pattern that begins with "user:".
func (c *Claims) Allows(channel string, right Right) bool {
	if c.own != "" && channel == c.own && right&Read != 0 {
		return true
	}
	if c.exact[channel]&right != 0 {
		return true
	}
	users := wire.Namespace(channel) == wire.UserNamespace
	for _, p := range c.prefixes {
		if p.rights&right == 0 || !strings.HasPrefix(channel, p.text) {
			continue
		}
		if !users || c.Subject == "" && p.text == "" || strings.HasPrefix(p.text, wire.UserNamespace+":") {
			return true
		}
	}
	return false
}

// grant adds one pattern: a channel, or a beginning of names followed by '*'.
func (c *Claims) grant(pattern string, rights Right) error {
	if pattern == "" || len(pattern) > wire.MaxChannelBytes {
		return fmt.Errorf("channels: a pattern has 1 to %d bytes", wire.MaxChannelBytes)
	}
	if text, ok := strings.CutSuffix(pattern, "*"); ok {
		c.prefixes = append(c.prefixes, prefix{text, rights})
		return nil
	}
	c.grantExact(pattern, rights)
	return nil
}

func (c *Claims) grantExact(channel string, rights Right) {
	if c.exact == nil {
		c.exact = make(map[string]Right)
	}
	c.exact[channel] |= rights
}

// channels reads the claim: a list of patterns, which gives Read, or an object of
// pattern to a list of rights.
func (c *Claims) channels(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		if len(list) > MaxPatterns {
			return fmt.Errorf("channels: %d patterns, at most %d are allowed", len(list), MaxPatterns)
		}
		for _, pattern := range list {
			if err := c.grant(pattern, Read); err != nil {
				return err
			}
		}
		return nil
	}
	var object map[string][]string
	if err := json.Unmarshal(raw, &object); err != nil {
		return fmt.Errorf("channels: must be a list of patterns or an object of pattern to rights")
	}
	if len(object) > MaxPatterns {
		return fmt.Errorf("channels: %d patterns, at most %d are allowed", len(object), MaxPatterns)
	}
	for pattern, names := range object {
		var rights Right
		for _, name := range names {
			right, ok := rightNames[name]
			if !ok {
				return fmt.Errorf("channels: right %.20q is none of subscribe, publish, history, presence", name)
			}
			rights |= right
		}
		if err := c.grant(pattern, rights); err != nil {
			return err
		}
	}
	return nil
}
