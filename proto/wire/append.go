package wire

import (
	"encoding/base64"
	"slices"
	"strconv"
	"unicode/utf8"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// AppendEvent appends the JSON form of an event push. It is the hot path: once
// for each event and edge, without allocating if dst has room.
func AppendEvent(dst []byte, channel string, e *gatewayv1.BusEvent) []byte {
	dst = append(dst, `{"type":"event","channel":`...)
	dst = appendString(dst, channel)
	dst = append(dst, ',')
	dst = appendEventBody(dst, e.Offset, e.Data, e.Binary, e.TimeMs, e.From)
	if len(e.Meta) > 0 {
		dst = append(dst, `,"meta":`...)
		dst = append(dst, e.Meta...)
	}
	return append(dst, '}')
}

func appendEventBody(dst []byte, offset uint64, data []byte, binary bool, timeMS uint64, from string) []byte {
	dst = append(dst, `"offset":`...)
	dst = strconv.AppendUint(dst, offset, 10)
	dst = appendData(dst, data, binary)
	dst = append(dst, `,"time_ms":`...)
	dst = strconv.AppendUint(dst, timeMS, 10)
	if from != "" {
		dst = append(dst, `,"from":`...)
		dst = appendString(dst, from)
	}
	return dst
}

func appendData(dst, data []byte, binary bool) []byte {
	if !binary {
		dst = append(dst, `,"data":`...)
		return append(dst, data...)
	}
	dst = append(dst, `,"data_b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, '"')
}

// MetaJSON is the compact JSON object of a meta map, keys sorted; nil if empty.
func MetaJSON(meta map[string]string) []byte {
	if len(meta) == 0 {
		return nil
	}
	keys := make([]string, 0, len(meta))
	for k := range meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	dst := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, k)
		dst = append(dst, ':')
		dst = appendString(dst, meta[k])
	}
	return append(dst, '}')
}

// object writes one JSON object, field by field.
type object struct {
	b     []byte
	first bool
}

func begin(dst []byte) object { return object{append(dst, '{'), true} }

func (o *object) key(name string) {
	if !o.first {
		o.b = append(o.b, ',')
	}
	o.first = false
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) str(name, v string) {
	o.key(name)
	o.b = appendString(o.b, v)
}

func (o *object) optStr(name, v string) {
	if v != "" {
		o.str(name, v)
	}
}

func (o *object) num(name string, v uint64) {
	o.key(name)
	o.b = strconv.AppendUint(o.b, v, 10)
}

func (o *object) optNum(name string, v uint64) {
	if v != 0 {
		o.num(name, v)
	}
}

func (o *object) bool(name string, v bool) {
	o.key(name)
	o.b = strconv.AppendBool(o.b, v)
}

func (o *object) optBool(name string, v bool) {
	if v {
		o.bool(name, v)
	}
}

func (o *object) raw(name string, v []byte) {
	o.key(name)
	o.b = append(o.b, v...)
}

func (o *object) end() []byte { return append(o.b, '}') }

// list writes `"name":[…]`, one object an element.
func list[T any](o *object, name string, items []T, element func(*object, T)) {
	o.key(name)
	o.b = append(o.b, '[')
	for i, item := range items {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		inner := begin(o.b)
		element(&inner, item)
		o.b = inner.end()
	}
	o.b = append(o.b, ']')
}

// appendString appends s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendClient appends the JSON form of a command.
func AppendClient(dst []byte, f *clientv1.ClientFrame) []byte {
	o := begin(dst)
	kind := func(name string) {
		o.str("type", name)
		o.optNum("id", uint64(f.Id))
	}
	switch m := f.Frame.(type) {
	case *clientv1.ClientFrame_Connect:
		kind("connect")
		o.optStr("token", m.Connect.Token)
		o.optStr("ticket", m.Connect.Ticket)
		if m.Connect.Attempt != nil {
			o.num("attempt", *m.Connect.Attempt)
		}
		if len(m.Connect.Subscriptions) > 0 {
			list(&o, "subscriptions", m.Connect.Subscriptions, appendAsk)
		}
		o.optStr("client", m.Connect.Client)
	case *clientv1.ClientFrame_Subscribe:
		kind("subscribe")
		if m.Subscribe.Single && len(m.Subscribe.Subscriptions) == 1 {
			appendAsk(&o, m.Subscribe.Subscriptions[0])
		} else {
			list(&o, "subscriptions", m.Subscribe.Subscriptions, appendAsk)
		}
	case *clientv1.ClientFrame_Unsubscribe:
		kind("unsubscribe")
		o.str("channel", m.Unsubscribe.Channel)
	case *clientv1.ClientFrame_Publish:
		kind("publish")
		o.str("channel", m.Publish.Channel)
		o.b = appendData(o.b, m.Publish.Data, m.Publish.Binary)
		if len(m.Publish.Meta) > 0 {
			o.raw("meta", MetaJSON(m.Publish.Meta))
		}
		o.optStr("key", m.Publish.Key)
	case *clientv1.ClientFrame_History:
		kind("history")
		o.str("channel", m.History.Channel)
		o.optStr("epoch", m.History.Epoch)
		if m.History.Offset != nil {
			o.num("offset", *m.History.Offset)
		}
		o.num("limit", uint64(m.History.Limit))
		o.optBool("reverse", m.History.Reverse)
	case *clientv1.ClientFrame_Presence:
		kind("presence")
		o.str("channel", m.Presence.Channel)
		o.optBool("counts_only", m.Presence.CountsOnly)
	case *clientv1.ClientFrame_Refresh:
		kind("refresh")
		o.str("token", m.Refresh.Token)
	case *clientv1.ClientFrame_Ping:
		kind("ping")
	}
	return o.end()
}

func appendAsk(o *object, s *clientv1.SubscriptionRequest) {
	o.str("channel", s.Channel)
	o.optStr("epoch", s.Epoch)
	if s.Offset != nil {
		o.num("offset", *s.Offset)
	}
	o.optNum("last", uint64(s.Last))
	o.optBool("presence", s.Presence)
}

// AppendServer appends the JSON form of a reply or push.
func AppendServer(dst []byte, f *clientv1.ServerFrame) []byte {
	o := begin(dst)
	kind := func(name string) {
		o.str("type", name)
		o.optNum("id", uint64(f.Id))
	}
	switch m := f.Frame.(type) {
	case *clientv1.ServerFrame_Connected:
		kind("connected")
		appendConnected(&o, m.Connected)
	case *clientv1.ServerFrame_Subscribed:
		kind("subscribed")
		if m.Subscribed.Single && len(m.Subscribed.Subscriptions) == 1 {
			appendEntry(&o, m.Subscribed.Subscriptions[0])
		} else {
			list(&o, "subscriptions", m.Subscribed.Subscriptions, appendEntry)
		}
	case *clientv1.ServerFrame_Unsubscribed:
		kind("unsubscribed")
		o.str("channel", m.Unsubscribed.Channel)
		appendErrorField(&o, m.Unsubscribed.Error)
	case *clientv1.ServerFrame_Event:
		kind("event")
		o.str("channel", m.Event.Channel)
		appendClientEvent(&o, m.Event)
	case *clientv1.ServerFrame_Published:
		kind("published")
		o.str("channel", m.Published.Channel)
		o.str("epoch", m.Published.Epoch)
		o.num("offset", m.Published.Offset)
	case *clientv1.ServerFrame_History:
		kind("history")
		o.str("channel", m.History.Channel)
		o.str("epoch", m.History.Epoch)
		list(&o, "events", m.History.Events, appendClientEvent)
		o.bool("more", m.History.More)
	case *clientv1.ServerFrame_Refreshed:
		kind("refreshed")
		appendOptional(&o, "expires_in_ms", m.Refreshed.ExpiresInMs)
		o.optStr("ticket", m.Refreshed.Ticket)
	case *clientv1.ServerFrame_Presence:
		kind("presence")
		appendPresence(&o, m.Presence)
	case *clientv1.ServerFrame_Gap:
		kind("gap")
		o.str("channel", m.Gap.Channel)
		o.str("epoch", m.Gap.Epoch)
		o.num("offset", m.Gap.Offset)
		o.str("reason", m.Gap.Reason)
		o.num("reload_after_ms", uint64(m.Gap.ReloadAfterMs))
	case *clientv1.ServerFrame_Reconnect:
		kind("reconnect")
		o.str("reason", m.Reconnect.Reason)
		o.num("after_ms", uint64(m.Reconnect.AfterMs))
		o.num("deadline_ms", uint64(m.Reconnect.DeadlineMs))
		o.optStr("url", m.Reconnect.Url)
		o.optStr("ticket", m.Reconnect.Ticket)
	case *clientv1.ServerFrame_Busy:
		kind("busy")
		o.num("retry_after_ms", uint64(m.Busy.RetryAfterMs))
		o.str("scope", m.Busy.Scope)
		o.optStr("url", m.Busy.Url)
		o.optStr("ticket", m.Busy.Ticket)
	case *clientv1.ServerFrame_Error:
		kind("error")
		appendError(&o, m.Error)
	case *clientv1.ServerFrame_Pong:
		kind("pong")
		o.optStr("ticket", m.Pong.Ticket)
		o.optNum("retry_window_ms", uint64(m.Pong.RetryWindowMs))
	}
	return o.end()
}

func appendConnected(o *object, m *clientv1.Connected) {
	o.str("session", m.Session)
	o.str("node", m.Node)
	o.str("region", m.Region)
	o.bool("resumed", m.Resumed)
	o.optStr("ticket", m.Ticket)
	o.num("ping_interval_ms", uint64(m.PingIntervalMs))
	o.num("pong_timeout_ms", uint64(m.PongTimeoutMs))
	o.num("retry_window_ms", uint64(m.RetryWindowMs))
	o.num("max_frame_bytes", uint64(m.MaxFrameBytes))
	appendOptional(o, "expires_in_ms", m.ExpiresInMs)
	list(o, "subscriptions", m.Subscriptions, appendEntry)
}

// appendEntry writes where a subscription stands: an error, pending, or a
// position with recovered told in either case.
func appendEntry(o *object, e *clientv1.SubscriptionEntry) {
	o.str("channel", e.Channel)
	switch {
	case e.Error != nil:
		appendErrorField(o, e.Error)
	case e.Pending:
		o.bool("pending", true)
	default:
		o.str("epoch", e.Epoch)
		o.num("offset", e.Offset)
		o.bool("recovered", e.Recovered)
		appendOptional(o, "from", e.From)
		appendOptional(o, "reload_after_ms", e.ReloadAfterMs)
	}
}

func appendClientEvent(o *object, e *clientv1.Event) {
	if !o.first {
		o.b = append(o.b, ',')
	}
	o.first = false
	o.b = appendEventBody(o.b, e.Offset, e.Data, e.Binary, e.TimeMs, e.From)
	if len(e.Meta) > 0 {
		o.raw("meta", MetaJSON(e.Meta))
	}
}

func appendPresence(o *object, m *clientv1.PresenceState) {
	member := func(o *object, p *clientv1.PresenceMember) {
		o.str("user", p.User)
		o.str("session", p.Session)
		if len(p.Info) > 0 {
			o.raw("info", p.Info)
		}
	}
	o.str("channel", m.Channel)
	o.num("rev", m.Rev)
	o.num("count", m.Count)
	for _, l := range []struct {
		name    string
		members []*clientv1.PresenceMember
	}{{"members", m.Members}, {"joined", m.Joined}, {"left", m.Left}} {
		if len(l.members) > 0 {
			list(o, l.name, l.members, member)
		}
	}
}

func appendErrorField(o *object, e *clientv1.Error) {
	if e == nil {
		return
	}
	o.key("error")
	inner := begin(o.b)
	appendError(&inner, e)
	o.b = inner.end()
}

func appendError(o *object, e *clientv1.Error) {
	o.str("code", ErrorWord(e.Code))
	o.str("message", e.Message)
	o.bool("temporary", e.Temporary)
	appendOptional(o, "retry_after_ms", e.RetryAfterMs)
	appendOptional(o, "close", e.Close)
}

func appendOptional[N uint32 | uint64](o *object, name string, v *N) {
	if v != nil {
		o.num(name, uint64(*v))
	}
}
