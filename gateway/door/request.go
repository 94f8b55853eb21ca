package door

import (
	"net/url"
	"strings"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/gateway/ticket"
	"github.com/spillway-io/spillway/proto/wire"
)

// The two paths of the public port, under any prefix.
const (
	PathWS      = settings.PathWS
	PathConnect = "/v1/connect"
)

// application is what a visitor wants, as the pool read it.
type application struct {
	token    uint64 // of the visitor
	response []byte // all there is to say; nil: it wants to be a conn
	refused  bool   // response says that the request is not good
	turnAway bool   // the pool had no room to read it

	request  *wsframe.Request
	rest     []byte // read behind the request
	protocol string // selected
	arrival  admission.Arrival
	ticket   *ticket.Ticket // gives an identity; nil: none
}

// desk reads requests and words the answers to them. It has no state, touches no socket,
// and works on whatever goroutine calls it: the pool's, mostly.
type desk struct {
	cfg  *Config
	deps *Deps
	gate *Gate
}

// read is what the pool does with a whole request. It touches no socket, token,
// store or bus; a ticket costs it under a microsecond.
func (d desk) read(token uint64, head, rest []byte) *application {
	bad := func(err error) *application {
		return &application{token: token, response: errorResponse(err), refused: true}
	}
	r, err := wsframe.ParseRequest(head)
	switch {
	case err != nil:
		return bad(err)
	case strings.HasSuffix(r.Path, PathConnect):
		return &application{token: token, response: d.connectAdvice(r)}
	case !strings.HasSuffix(r.Path, PathWS):
		return bad(&wsframe.HTTPError{Status: 404, Reason: "there is " + PathWS + " and " + PathConnect})
	}
	protocol, known, err := subprotocol(r)
	if err == nil {
		err = r.CheckUpgrade()
	}
	if err == nil && !d.originAllowed(r) {
		err = &wsframe.HTTPError{Status: 403, Reason: "this origin is not allowed"}
	}
	if err != nil {
		return bad(err)
	}
	a := &application{token: token, request: r, rest: rest, protocol: protocol}
	a.arrival = admission.Arrival{Lane: admission.LaneFresh, Obeys: known}
	d.readTickets(a)
	return a
}

// maxTickets bounds the tickets that are opened for one request: a pass and one that
// stands for an identity.
const maxTickets = 2

// readTickets opens what was offered beside the subprotocol: it decides the lane. A
// ticket that is not good counts as none.
func (d desk) readTickets(a *application) {
	n, now := 0, time.Now()
	for p := range a.request.Protocols() {
		text, ok := strings.CutPrefix(p, wire.TicketPrefix)
		if !ok {
			continue
		}
		if n++; n > maxTickets {
			return
		}
		t, err := d.deps.Tickets.Open(text, now)
		if err == nil && !(t.HasIdentity && d.deps.Tickets.Revoked(t.User, t.TokenID, t.TokenIssued)) {
			d.useTicket(a, t)
		}
	}
}

func (d desk) useTicket(a *application, t *ticket.Ticket) {
	switch t.Kind {
	case ticket.Pass:
		if t.Lane == uint8(admission.LaneResume) && a.arrival.Lane == admission.LaneFresh {
			a.arrival.Lane = admission.LaneResume
		}
		if d.deps.Targets.SameRegion(t.Edge) {
			a.arrival.Pass = &admission.Pass{Nonce: t.Mark(), Slot: t.SlotFrom}
		}
	case ticket.Moved:
		a.arrival.Lane = admission.LaneResume
		if t.Target == "" || t.Target == d.cfg.ID { // a target is advice: elsewhere it is a resume
			a.arrival.Lane = admission.LaneMoved
			a.arrival.Move = &admission.Move{Operation: t.Operation, Edge: t.Edge, Until: t.SlotUntil, Anywhere: t.Target == "", Mark: t.Mark()}
		}
	case ticket.Resume:
		if a.arrival.Lane == admission.LaneFresh {
			a.arrival.Lane = admission.LaneResume
		}
	}
	if t.HasIdentity && (a.ticket == nil || t.Kind != ticket.Pass) {
		a.ticket = t
	}
}

// subprotocol selects what is spoken; none offered: JSON. known says that the
// client offered one of Spillway's, so that it can read a busy frame.
func subprotocol(r *wsframe.Request) (selected string, known bool, err error) {
	offered := false
	for p := range r.Protocols() {
		if strings.HasPrefix(p, wire.TicketPrefix) {
			continue // read where tickets are; never selected, never logged
		}
		offered = true
		if p == wire.ProtocolJSON {
			return p, true, nil
		}
	}
	if offered {
		return "", false, &wsframe.HTTPError{Status: 400, Reason: "none of the subprotocols offered is spoken here: " + wire.ProtocolJSON}
	}
	return "", false, nil
}

// originAllowed: requests without Origin (no browser) and from the own host pass.
func (d desk) originAllowed(r *wsframe.Request) bool {
	origin := r.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) {
		return true
	}
	for _, allowed := range d.cfg.Origins {
		if allowed == "*" || strings.EqualFold(allowed, u.Host) || strings.EqualFold(allowed, origin) {
			return true
		}
	}
	return false
}
