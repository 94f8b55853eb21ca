package presence

import (
	"strings"
	"unicode/utf8"

	"github.com/spillway-io/spillway/proto/schema"
)

// maxLabelBytes bounds ids, regions and zones: they stand in every figure.
const maxLabelBytes = 255

// Identity is what an operator calls a node.
type Identity struct {
	ID     string `key:"id" auto:"the host name" must:"must have 1 to 255 bytes without slash or space" example:"edge-1" doc:"The node is known by this name, which no other live node of its role has."`
	Region string `key:"region" default:"default" rule:"not empty" example:"eu" doc:"The node stands in this region. Clients are moved within their region where they can be."`
	Zone   string `key:"zone" default:"" zero:"none" example:"eu-1a" doc:"The node stands in this zone of its region. It is a label."`
}

// Check implements schema.Checker.
func (i *Identity) Check(p *schema.Problems) {
	if i.ID == "" || !label(i.ID) || strings.ContainsAny(i.ID, "/ ") {
		p.Add(&i.ID, "must have 1 to 255 bytes without slash or space")
	}
	for _, l := range []*string{&i.Region, &i.Zone} {
		if !label(*l) {
			p.Add(l, "must be UTF-8 of at most 255 bytes without control characters")
		}
	}
}

func label(text string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return len(text) <= maxLabelBytes && utf8.ValidString(text) && !strings.ContainsFunc(text, control)
}
