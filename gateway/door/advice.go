package door

import (
	"encoding/json"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// connectAdvice answers GET /v1/connect: where to go and when, for clients that
// cannot read a refused handshake. 200 also when it says wait. It runs on the pool.
func (d desk) connectAdvice(r *wsframe.Request) []byte {
	if !d.originAllowed(r) {
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
	decision, except := d.gate.advise(), ""
	if decision.Elsewhere {
		except = d.cfg.ID
	}
	advice.URL = d.deps.Targets.InRegion(except, func() uint64 { return uint64(d.gate.Status().Headroom) })
	// Edges of a region are about as full as each other: if there would be no turn here,
	// there is none where the draw sends it, and the pass is good there too.
	switch {
	case decision.Verdict == admission.Admit:
	case decision.Elsewhere && advice.URL != "":
	case !decision.Slot.IsZero():
		advice.AfterMS, advice.Ticket = decision.After.Milliseconds(), d.pass(nil, decision)
	default:
		advice.AfterMS = decision.After.Milliseconds()
	}
	body, _ := json.Marshal(advice)
	header = append(header, "Content-Type", "application/json")
	return wsframe.AppendResponse(nil, wsframe.Response{Status: 200, Header: header, Body: body})
}

// elsewhere draws another edge of the region; "": there is none with room.
func (d desk) elsewhere() string { return d.deps.Targets.InRegion(d.cfg.ID, nil) }
