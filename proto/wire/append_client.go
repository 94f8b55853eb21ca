package wire

import (
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// AppendClient appends the JSON form of a command. Publish data that is not binary
// must be compact JSON (CompactJSON).
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
