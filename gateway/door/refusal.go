package door

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/ticket"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// How far a refusal reaches, as clients are told.
const (
	scopeNode   = "node"   // another edge may have room
	scopeRegion = "region" // a slot is good at any edge of the region
)

// leavingRetry is over how long those are spread who come to an edge that leaves.
const leavingRetry = time.Second

// busy refuses for load, in one write: who speaks our protocol gets 101, `busy` and
// a close, anybody else 503.
func (d desk) busy(a *application, decision admission.Decision) []byte {
	away := ""
	if d.gate.leaving.Load() && !decision.Elsewhere {
		// An evacuated region: there may be room in another.
		if away = d.deps.Targets.Likely(d.deps.Targets.Edges(0)); away != "" {
			decision.After = leavingRetry/4 + rand.N(leavingRetry)
		}
	}
	if !a.arrival.Obeys {
		return plainBusy(decision.After)
	}
	m := &clientv1.Busy{RetryAfterMs: uint32(decision.After.Milliseconds()), Scope: scopeNode}
	switch {
	case !decision.Slot.IsZero():
		// The slot is in this edge's timetable: through a balancer it would come anywhere.
		m.Scope, m.Ticket, m.Url = scopeRegion, d.pass(a, decision), d.deps.Targets.Address(d.cfg.ID)
	case decision.Elsewhere:
		m.Url = d.elsewhere()
	case away != "":
		m.Url = away
	}
	b := wsframe.AppendAccept(nil, a.request, a.protocol)
	frame := wire.AppendServer(nil, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Busy{Busy: m}})
	b = wsframe.AppendFrame(b, wsframe.Text, frame)
	return wsframe.AppendClose(b, uint16(wire.CloseBusy), wire.CloseBusy.Name())
}

// afterPass is how long a dead pass can still be opened: a client that is late should
// not lose the identity in it to a clock.
const afterPass = time.Minute

// pass mints the ticket for the slot of a refusal, with the identity that the client
// showed. "": there is no key; the slot is told all the same.
func (d desk) pass(a *application, decision admission.Decision) string {
	t := ticket.Ticket{
		Kind: ticket.Pass, Edge: d.cfg.ID, Lane: uint8(decision.Lane), Nonce: rand.Uint64(),
		SlotFrom: decision.Slot, SlotUntil: decision.Slot.Add(admission.PassLife), Expires: decision.Slot.Add(admission.PassLife + afterPass),
	}
	if decision.Cause == admission.CauseEarly {
		t.Nonce = a.arrival.Pass.Nonce // the same one
	}
	var claims *auth.Claims
	if a != nil && a.ticket != nil {
		if known, err := a.ticket.Claims(); err == nil {
			claims = known
			t.HasSession, t.Session = a.ticket.HasSession, a.ticket.Session
		}
	}
	text, err := d.deps.Tickets.Seal(t, claims, time.Now())
	if err != nil {
		return ""
	}
	return text
}

func plainBusy(after time.Duration) []byte {
	body, _ := json.Marshal(map[string]any{"retry_after_ms": after.Milliseconds(), "scope": scopeNode})
	return wsframe.AppendResponse(nil, wsframe.Response{
		Status: 503, Body: body,
		Header: []string{
			"Content-Type", "application/json", "Cache-Control", "no-store",
			"Retry-After", strconv.Itoa(int((after + time.Second - 1) / time.Second)),
		},
	})
}

func errorResponse(err error) []byte {
	var bad *wsframe.HTTPError
	if !errors.As(err, &bad) {
		bad = &wsframe.HTTPError{Status: 400, Reason: "the request is not good"}
	}
	return wsframe.AppendError(nil, bad)
}
