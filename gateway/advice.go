package gateway

import (
	"encoding/json"
	"math/rand/v2"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// connectAdvice answers GET /v1/connect: where to go and when, for clients that
// cannot read a refused handshake. 200 also when it says wait. It runs on the pool.
func (e *Edge) connectAdvice(r *wsframe.Request) []byte {
	if !e.originAllowed(r) {
		return errorResponse(&wsframe.HTTPError{Status: 403, Reason: "this origin is not allowed"})
	}
	header := []string{"Cache-Control", "no-store", "Vary", "Origin"}
	if origin := r.Get("Origin"); origin != "" {
		header = append(header, "Access-Control-Allow-Origin", origin)
	}
	switch r.Method {
	case "GET":
	case "OPTIONS":
		header = append(header, "Access-Control-Allow-Methods", "GET")
		return wsframe.AppendResponse(nil, wsframe.Response{Status: 204, Header: header})
	default:
		return errorResponse(&wsframe.HTTPError{Status: 405, Reason: "GET only"})
	}
	var advice struct {
		URL     string `json:"url,omitempty"`
		AfterMS int64  `json:"after_ms"`
		Ticket  string `json:"ticket,omitempty"`
	}
	d, but := e.gate.advise(), ""
	if d.Elsewhere {
		but = e.cfg.ID
	}
	advice.URL = e.drawEdge(but)
	// Edges of a region are about as full as each other: if there would be no turn here,
	// there is none where the draw sends it, and the pass is good there too.
	switch {
	case d.Verdict == admission.Admit:
	case d.Elsewhere && advice.URL != "":
	case !d.Slot.IsZero():
		advice.AfterMS, advice.Ticket = d.After.Milliseconds(), e.pass(nil, d)
	default:
		advice.AfterMS = d.After.Milliseconds()
	}
	body, _ := json.Marshal(advice)
	header = append(header, "Content-Type", "application/json")
	return wsframe.AppendResponse(nil, wsframe.Response{Status: 200, Header: header, Body: body})
}

// drawEdge draws an edge of the region with an address, weighted by headroom less
// grants; "": there is none. but is left out.
func (e *Edge) drawEdge(but string) string {
	type candidate struct {
		url      string
		headroom uint64
	}
	var candidates []candidate
	total := uint64(0)
	figures, snapshot := e.members.Figures(), e.members.Snapshot()
	own := e.ownAddress(snapshot)
	for _, m := range snapshot.Edges() {
		if !mayHint(own, m.Address) || m.Region != e.cfg.Region || m.Id == but {
			continue
		}
		headroom := uint64(0)
		if f := figures[keyOf(m)]; f != nil {
			headroom = f.Headroom // grants are taken off
		} else if m.Id == e.cfg.ID {
			headroom = uint64(e.gate.status().Headroom)
		}
		if headroom > 0 {
			candidates = append(candidates, candidate{m.Address, headroom})
			total += headroom
		}
	}
	if total == 0 {
		return ""
	}
	at := rand.Uint64N(total)
	for _, c := range candidates {
		if at < c.headroom {
			return c.url
		}
		at -= c.headroom
	}
	return ""
}
