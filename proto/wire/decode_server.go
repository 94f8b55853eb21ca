package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

type errorJSON struct {
	Code         string  `json:"code"`
	Message      string  `json:"message"`
	Temporary    bool    `json:"temporary"`
	RetryAfterMS *uint32 `json:"retry_after_ms"`
	Close        *uint32 `json:"close"`
}

func (e *errorJSON) frame() *clientv1.Error {
	if e == nil {
		return nil
	}
	return &clientv1.Error{
		Code: ParseErrorWord(e.Code), Message: e.Message, Temporary: e.Temporary,
		RetryAfterMs: e.RetryAfterMS, Close: e.Close,
	}
}

type entryJSON struct {
	Channel       string     `json:"channel"`
	Epoch         string     `json:"epoch"`
	Offset        uint64     `json:"offset"`
	Recovered     bool       `json:"recovered"`
	Pending       bool       `json:"pending"`
	From          *uint64    `json:"from"`
	ReloadAfterMS *uint32    `json:"reload_after_ms"`
	Error         *errorJSON `json:"error"`
}

func (e *entryJSON) frame() *clientv1.SubscriptionEntry {
	return &clientv1.SubscriptionEntry{
		Channel: e.Channel, Epoch: e.Epoch, Offset: e.Offset, Recovered: e.Recovered, Pending: e.Pending,
		From: e.From, ReloadAfterMs: e.ReloadAfterMS, Error: e.Error.frame(),
	}
}

func entries(in []entryJSON) []*clientv1.SubscriptionEntry {
	out := make([]*clientv1.SubscriptionEntry, len(in))
	for i := range in {
		out[i] = in[i].frame()
	}
	return out
}

type eventJSON struct {
	Channel string            `json:"channel"`
	Offset  uint64            `json:"offset"`
	Data    json.RawMessage   `json:"data"`
	DataB64 *string           `json:"data_b64"`
	TimeMS  uint64            `json:"time_ms"`
	From    string            `json:"from"`
	Meta    map[string]string `json:"meta"`
}

func (e *eventJSON) frame() (*clientv1.Event, error) {
	m := &clientv1.Event{Channel: e.Channel, Offset: e.Offset, Data: e.Data, TimeMs: e.TimeMS, From: e.From, Meta: e.Meta}
	if e.DataB64 != nil {
		m.Binary = true
		var err error
		if m.Data, err = base64.StdEncoding.DecodeString(*e.DataB64); err != nil {
			return nil, fmt.Errorf("data_b64: %w", err)
		}
	}
	return m, nil
}

type memberJSON struct {
	User    string          `json:"user"`
	Session string          `json:"session"`
	Info    json.RawMessage `json:"info"`
}

func members(in []memberJSON) []*clientv1.PresenceMember {
	out := make([]*clientv1.PresenceMember, len(in))
	for i, m := range in {
		out[i] = &clientv1.PresenceMember{User: m.User, Session: m.Session, Info: m.Info}
	}
	return out
}

// DecodeServer reads one reply or push. Unknown fields are ignored; an unknown
// type gives a frame without content, which clients ignore too.
func DecodeServer(line []byte) (*clientv1.ServerFrame, error) {
	var head struct {
		Type string `json:"type"`
		ID   uint32 `json:"id"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, fmt.Errorf("decode frame: %w", err)
	}
	f := &clientv1.ServerFrame{Id: head.ID}
	decode, known := serverFrames[head.Type]
	if !known {
		return f, nil
	}
	if err := decode(f, line); err != nil {
		return nil, fmt.Errorf("decode %s: %w", head.Type, err)
	}
	return f, nil
}

var serverFrames = map[string]func(*clientv1.ServerFrame, []byte) error{
	"connected":    decodeConnected,
	"subscribed":   decodeSubscribed,
	"unsubscribed": decodeUnsubscribed,
	"event":        decodeEvent,
	"published":    decodePublished,
	"history":      decodeHistory,
	"refreshed":    decodeRefreshed,
	"presence":     decodePresence,
	"gap":          decodeGap,
	"reconnect":    decodeReconnect,
	"busy":         decodeBusy,
	"error":        decodeError,
	"pong":         decodePong,
}

func decodeConnected(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Session        string      `json:"session"`
		Node           string      `json:"node"`
		Region         string      `json:"region"`
		Resumed        bool        `json:"resumed"`
		Ticket         string      `json:"ticket"`
		PingIntervalMS uint32      `json:"ping_interval_ms"`
		PongTimeoutMS  uint32      `json:"pong_timeout_ms"`
		RetryWindowMS  uint32      `json:"retry_window_ms"`
		MaxFrameBytes  uint32      `json:"max_frame_bytes"`
		ExpiresInMS    *uint64     `json:"expires_in_ms"`
		Subscriptions  []entryJSON `json:"subscriptions"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
		Session: m.Session, Node: m.Node, Region: m.Region, Resumed: m.Resumed, Ticket: m.Ticket,
		PingIntervalMs: m.PingIntervalMS, PongTimeoutMs: m.PongTimeoutMS, RetryWindowMs: m.RetryWindowMS,
		MaxFrameBytes: m.MaxFrameBytes, ExpiresInMs: m.ExpiresInMS, Subscriptions: entries(m.Subscriptions),
	}}
	return nil
}

func decodeSubscribed(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		entryJSON
		Subscriptions *[]entryJSON `json:"subscriptions"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	s := &clientv1.Subscribed{Single: m.Subscriptions == nil}
	if s.Single {
		s.Subscriptions = entries([]entryJSON{m.entryJSON})
	} else {
		s.Subscriptions = entries(*m.Subscriptions)
	}
	f.Frame = &clientv1.ServerFrame_Subscribed{Subscribed: s}
	return nil
}

func decodeUnsubscribed(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Channel string     `json:"channel"`
		Error   *errorJSON `json:"error"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Unsubscribed{Unsubscribed: &clientv1.Unsubscribed{Channel: m.Channel, Error: m.Error.frame()}}
	return nil
}

func decodeEvent(f *clientv1.ServerFrame, line []byte) error {
	var m eventJSON
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	e, err := m.frame()
	f.Frame = &clientv1.ServerFrame_Event{Event: e}
	return err
}

func decodePublished(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Channel string `json:"channel"`
		Epoch   string `json:"epoch"`
		Offset  uint64 `json:"offset"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Published{Published: &clientv1.Published{Channel: m.Channel, Epoch: m.Epoch, Offset: m.Offset}}
	return nil
}

func decodeHistory(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Channel string      `json:"channel"`
		Epoch   string      `json:"epoch"`
		Events  []eventJSON `json:"events"`
		More    bool        `json:"more"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	h := &clientv1.HistoryResult{Channel: m.Channel, Epoch: m.Epoch, More: m.More}
	for i := range m.Events {
		e, err := m.Events[i].frame()
		if err != nil {
			return err
		}
		h.Events = append(h.Events, e)
	}
	f.Frame = &clientv1.ServerFrame_History{History: h}
	return nil
}

func decodeRefreshed(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		ExpiresInMS *uint64 `json:"expires_in_ms"`
		Ticket      string  `json:"ticket"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Refreshed{Refreshed: &clientv1.Refreshed{ExpiresInMs: m.ExpiresInMS, Ticket: m.Ticket}}
	return nil
}

func decodePresence(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Channel string       `json:"channel"`
		Rev     uint64       `json:"rev"`
		Count   uint64       `json:"count"`
		Members []memberJSON `json:"members"`
		Joined  []memberJSON `json:"joined"`
		Left    []memberJSON `json:"left"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Presence{Presence: &clientv1.PresenceState{
		Channel: m.Channel, Rev: m.Rev, Count: m.Count,
		Members: members(m.Members), Joined: members(m.Joined), Left: members(m.Left),
	}}
	return nil
}

func decodeGap(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Channel       string `json:"channel"`
		Epoch         string `json:"epoch"`
		Offset        uint64 `json:"offset"`
		Reason        string `json:"reason"`
		ReloadAfterMS uint32 `json:"reload_after_ms"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{
		Channel: m.Channel, Epoch: m.Epoch, Offset: m.Offset, Reason: m.Reason, ReloadAfterMs: m.ReloadAfterMS,
	}}
	return nil
}

func decodeReconnect(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Reason     string `json:"reason"`
		AfterMS    uint32 `json:"after_ms"`
		DeadlineMS uint32 `json:"deadline_ms"`
		URL        string `json:"url"`
		Ticket     string `json:"ticket"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
		Reason: m.Reason, AfterMs: m.AfterMS, DeadlineMs: m.DeadlineMS, Url: m.URL, Ticket: m.Ticket,
	}}
	return nil
}

func decodeBusy(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		RetryAfterMS uint32 `json:"retry_after_ms"`
		Scope        string `json:"scope"`
		URL          string `json:"url"`
		Ticket       string `json:"ticket"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{
		RetryAfterMs: m.RetryAfterMS, Scope: m.Scope, Url: m.URL, Ticket: m.Ticket,
	}}
	return nil
}

func decodeError(f *clientv1.ServerFrame, line []byte) error {
	var m errorJSON
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Error{Error: m.frame()}
	return nil
}

func decodePong(f *clientv1.ServerFrame, line []byte) error {
	var m struct {
		Ticket        string `json:"ticket"`
		RetryWindowMS uint32 `json:"retry_window_ms"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	f.Frame = &clientv1.ServerFrame_Pong{Pong: &clientv1.Pong{Ticket: m.Ticket, RetryWindowMs: m.RetryWindowMS}}
	return nil
}
