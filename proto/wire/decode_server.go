package wire

import (
	"errors"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// fillServer reads the fields of a type; an unknown type has none.
func fillServer(kind string, f *clientv1.ServerFrame, in *fields) {
	switch kind {
	case "connected":
		f.Frame = &clientv1.ServerFrame_Connected{Connected: in.connected()}
	case "subscribed":
		m := &clientv1.Subscribed{Single: !in.has(fSubscriptions)}
		if m.Single {
			m.Subscriptions = []*clientv1.SubscriptionEntry{in.entry()}
		} else {
			m.Subscriptions = in.entries()
		}
		f.Frame = &clientv1.ServerFrame_Subscribed{Subscribed: m}
	case "unsubscribed":
		f.Frame = &clientv1.ServerFrame_Unsubscribed{
			Unsubscribed: &clientv1.Unsubscribed{Channel: in.text(fChannel), Error: in.errorField()},
		}
	case "event":
		f.Frame = &clientv1.ServerFrame_Event{Event: in.event()}
	case "published":
		f.Frame = &clientv1.ServerFrame_Published{Published: &clientv1.Published{
			Channel: in.text(fChannel), Epoch: in.text(fEpoch), Offset: in.u53(fOffset),
		}}
	case "history":
		m := &clientv1.HistoryResult{Channel: in.text(fChannel), Epoch: in.text(fEpoch), More: in.flag(fMore)}
		in.each(fEvents, func(in *fields) { m.Events = append(m.Events, in.event()) })
		f.Frame = &clientv1.ServerFrame_History{History: m}
	case "refreshed":
		f.Frame = &clientv1.ServerFrame_Refreshed{
			Refreshed: &clientv1.Refreshed{ExpiresInMs: in.optU53(fExpiresInMS), Ticket: in.text(fTicket)},
		}
	case "presence":
		f.Frame = &clientv1.ServerFrame_Presence{Presence: &clientv1.PresenceState{
			Channel: in.text(fChannel), Rev: in.u53(fRev), Count: in.u53(fCount),
			Members: in.people(fMembers), Joined: in.people(fJoined), Left: in.people(fLeft),
		}}
	case "gap":
		f.Frame = &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{
			Channel: in.text(fChannel), Epoch: in.text(fEpoch), Offset: in.u53(fOffset),
			Reason: in.text(fReason), ReloadAfterMs: in.u32(fReloadAfterMS),
		}}
	case "reconnect":
		f.Frame = &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
			Reason: in.text(fReason), AfterMs: in.u32(fAfterMS), DeadlineMs: in.u32(fDeadlineMS),
			Url: in.text(fURL), Ticket: in.text(fTicket),
		}}
	case "busy":
		f.Frame = &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{
			RetryAfterMs: in.u32(fRetryAfterMS), Scope: in.text(fScope), Url: in.text(fURL), Ticket: in.text(fTicket),
		}}
	case "error":
		f.Frame = &clientv1.ServerFrame_Error{Error: in.error()}
	case "pong":
		f.Frame = &clientv1.ServerFrame_Pong{
			Pong: &clientv1.Pong{Ticket: in.text(fTicket), RetryWindowMs: in.u32(fRetryWindowMS)},
		}
	}
}

func (f *fields) connected() *clientv1.Connected {
	return &clientv1.Connected{
		Session: f.text(fSession), Node: f.text(fNode), Region: f.text(fRegion), Resumed: f.flag(fResumed),
		Ticket: f.text(fTicket), PingIntervalMs: f.u32(fPingIntervalMS), PongTimeoutMs: f.u32(fPongTimeoutMS),
		RetryWindowMs: f.u32(fRetryWindowMS), MaxFrameBytes: f.u32(fMaxFrameBytes),
		ExpiresInMs: f.optU53(fExpiresInMS), Subscriptions: f.entries(),
	}
}

func (f *fields) entries() (out []*clientv1.SubscriptionEntry) {
	f.each(fSubscriptions, func(f *fields) { out = append(out, f.entry()) })
	return out
}

func (f *fields) entry() *clientv1.SubscriptionEntry {
	return &clientv1.SubscriptionEntry{
		Channel: f.text(fChannel), Epoch: f.text(fEpoch), Offset: f.u53(fOffset),
		Recovered: f.flag(fRecovered), Pending: f.flag(fPending), From: f.optU53(fFrom),
		ReloadAfterMs: f.optU32(fReloadAfterMS), Error: f.errorField(),
	}
}

func (f *fields) errorField() (out *clientv1.Error) {
	if f.has(fError) {
		f.nested(fError, -1, f.raw[fError], func(f *fields) { out = f.error() })
	}
	return out
}

func (f *fields) error() *clientv1.Error {
	return &clientv1.Error{
		Code: ParseErrorWord(f.text(fCode)), Message: f.text(fMessage), Temporary: f.flag(fTemporary),
		RetryAfterMs: f.optU32(fRetryAfterMS), Close: f.optU32(fClose),
	}
}

func (f *fields) event() *clientv1.Event {
	e := &clientv1.Event{
		Channel: f.text(fChannel), Offset: f.u53(fOffset), TimeMs: f.u53(fTimeMS),
		From: f.text(fFrom), Meta: f.meta(),
	}
	if e.Data, e.Binary = f.payload(); e.Data == nil && !e.Binary && f.err == nil {
		f.err = errors.New("data is missing")
	}
	return e
}

func (f *fields) people(id field) (out []*clientv1.PresenceMember) {
	f.each(id, func(f *fields) {
		out = append(out, &clientv1.PresenceMember{
			User: f.text(fUser), Session: f.text(fSession), Info: f.clone(fInfo),
		})
	})
	return out
}
