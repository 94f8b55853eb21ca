package wire

import (
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

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

// appendEntry writes where a subscription stands. A client that reads neither
// pending nor error finds recovered, always.
func appendEntry(o *object, e *clientv1.SubscriptionEntry) {
	told := e.Error == nil && !e.Pending
	o.str("channel", e.Channel)
	if told || e.Epoch != "" || e.Offset != 0 {
		o.str("epoch", e.Epoch)
		o.num("offset", e.Offset)
	}
	if told || e.Recovered {
		o.bool("recovered", e.Recovered)
	}
	o.optBool("pending", e.Pending)
	appendOptional(o, "from", e.From)
	appendOptional(o, "reload_after_ms", e.ReloadAfterMs)
	appendErrorField(o, e.Error)
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
	o.open()
	appendError(o, e)
	o.close()
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
