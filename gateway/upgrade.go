package gateway

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// The two paths of the public port, under any prefix.
const (
	pathWS      = "/v1/ws"
	pathConnect = "/v1/connect"
)

// decide answers a whole request; it runs on the pool. Refusals come before token,
// store or bus are touched.
func (e *Edge) decide(v *visitor, head, rest []byte) {
	r, err := wsframe.ParseRequest(head)
	if err != nil {
		e.metrics.refused(refusedRequest)
		e.door.say(v, errorResponse(err))
		return
	}
	switch {
	case strings.HasSuffix(r.Path, pathConnect):
		e.door.say(v, e.connectAdvice(r))
	case !strings.HasSuffix(r.Path, pathWS):
		e.metrics.refused(refusedRequest)
		e.door.say(v, errorResponse(&wsframe.HTTPError{Status: 404, Reason: "there is " + pathWS + " and " + pathConnect}))
	default:
		e.upgrade(v, r, rest)
	}
}

// upgrade makes a conn of a visitor, or says why not.
func (e *Edge) upgrade(v *visitor, r *wsframe.Request, rest []byte) {
	protocol, known, err := subprotocol(r)
	if err == nil {
		err = r.CheckUpgrade()
	}
	if err == nil && !e.originAllowed(r) {
		err = &wsframe.HTTPError{Status: 403, Reason: "this origin is not allowed"}
	}
	if err != nil {
		e.metrics.refused(refusedRequest)
		e.door.say(v, errorResponse(err))
		return
	}
	if e.draining.Load() || !e.admit() {
		e.metrics.refused(refusedBusy)
		e.door.say(v, e.busy(r, protocol, known))
		return
	}
	response := wsframe.AppendAccept(make([]byte, 0, 256), r, protocol)
	if n, err := v.sock.Write(response); err != nil || n < len(response) {
		e.released()
		v.sock.Close()
		return
	}
	e.metrics.admitted.Inc()
	e.series.add(countFresh)
	e.nextLoop().inbox.post(&adopted{sock: v.sock, rest: rest})
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
func (e *Edge) originAllowed(r *wsframe.Request) bool {
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
	for _, allowed := range e.cfg.Origins {
		if allowed == "*" || strings.EqualFold(allowed, u.Host) || strings.EqualFold(allowed, origin) {
			return true
		}
	}
	return false
}

// retryAfter spreads those who cannot be given a slot.
func (e *Edge) retryAfter() time.Duration {
	const most = 30 * time.Second
	return most/2 + rand.N(most/2)
}

// busy refuses for load, in one write: who speaks our protocol gets 101, `busy` and
// a close, anybody else 503.
func (e *Edge) busy(r *wsframe.Request, protocol string, known bool) []byte {
	after := e.retryAfter()
	if !known {
		return e.plainBusy(after)
	}
	b := wsframe.AppendAccept(nil, r, protocol)
	frame := wire.AppendServer(nil, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{
		RetryAfterMs: uint32(after.Milliseconds()), Scope: "node",
	}}})
	b = wsframe.AppendFrame(b, wsframe.Text, frame)
	return wsframe.AppendClose(b, uint16(wire.CloseBusy), wire.CloseBusy.Name())
}

func (e *Edge) plainBusy(after time.Duration) []byte {
	body, _ := json.Marshal(map[string]any{"code": "busy", "retry_after_ms": after.Milliseconds()})
	return wsframe.AppendResponse(nil, wsframe.Response{
		Status: 503, Body: body,
		Header: []string{"Content-Type", "application/json", "Retry-After", strconv.Itoa(int((after + time.Second - 1) / time.Second))},
	})
}

func errorResponse(err error) []byte {
	var bad *wsframe.HTTPError
	if !errors.As(err, &bad) {
		bad = &wsframe.HTTPError{Status: 400, Reason: "the request is not good"}
	}
	return wsframe.AppendError(nil, bad)
}

// connectAdvice answers GET /v1/connect: where to go and when, for clients that
// cannot read a refused handshake. 200 also when it says wait.
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
	}
	advice.URL = e.otherEdge()
	if advice.URL == "" && e.full() {
		advice.AfterMS = e.retryAfter().Milliseconds()
	}
	body, _ := json.Marshal(advice)
	header = append(header, "Content-Type", "application/json")
	return wsframe.AppendResponse(nil, wsframe.Response{Status: 200, Header: header, Body: body})
}

// otherEdge draws an edge with an address and headroom, weighted by headroom; "":
// there is none.
func (e *Edge) otherEdge() string {
	figures := e.members.Figures()
	total := uint64(0)
	type candidate struct {
		url      string
		headroom uint64
	}
	var candidates []candidate
	for _, m := range e.members.Snapshot().Edges() {
		if m.Address == "" || m.Region != e.cfg.Region {
			continue
		}
		headroom := m.Capacity
		if f := figures[keyOf(m)]; f != nil {
			headroom -= min(headroom, f.Conns)
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
