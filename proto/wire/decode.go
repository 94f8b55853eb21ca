package wire

import (
	"errors"
	"fmt"
	"math"
	"slices"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// Problem says why a command is refused.
type Problem struct {
	ID      uint32 // of the command, if it could be read; else 0
	Code    clientv1.ErrorCode
	Message string
}

func (p *Problem) Error() string { return ErrorWord(p.Code) + ": " + p.Message }

const badRequest = clientv1.ErrorCode_ERROR_CODE_BAD_REQUEST

// DecodeClient reads one command. Unknown fields are ignored, of a field that
// stands twice the last counts, null is absence. Publish data is compacted. The
// frame shares nothing with line. Channels of a subscribe or connect command are
// not checked here: each is answered by itself.
func DecodeClient(line []byte) (*clientv1.ClientFrame, *Problem) {
	if id, ok := decodePing(line); ok {
		return &clientv1.ClientFrame{Id: id, Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}}, nil
	}
	var in fields
	if err := in.read(line); err != nil {
		return nil, &Problem{Code: badRequest, Message: "frame: " + err.Error()}
	}
	f := &clientv1.ClientFrame{Id: commandID(&in)}
	var err error
	switch {
	case f.Id != 0:
		err = fillCommand(f, &in)
	case !in.has(fID):
		err = errors.New("id is missing")
	default:
		err = fmt.Errorf("id: a whole number from 1 to %d is expected", uint32(math.MaxUint32))
	}
	if err != nil {
		return nil, &Problem{ID: f.Id, Code: badRequest, Message: err.Error()}
	}
	return f, nil
}

// commandID is 0 if there is none or it is not one.
func commandID(in *fields) uint32 {
	if !in.has(fID) {
		return 0
	}
	id, ok := parseUint(in.raw[fID])
	if !ok || id > math.MaxUint32 {
		return 0
	}
	return uint32(id)
}

// fillCommand puts what the command's type wants into f.
func fillCommand(f *clientv1.ClientFrame, in *fields) error {
	if !in.has(fType) {
		return errors.New("type is missing")
	}
	switch kind := in.text(fType); kind {
	case "connect":
		m := &clientv1.Connect{
			Token: in.text(fToken), Ticket: in.text(fTicket), Attempt: in.optU53(fAttempt), Client: in.text(fClient),
		}
		in.each(fSubscriptions, func(in *fields) { m.Subscriptions = append(m.Subscriptions, in.request()) })
		f.Frame = &clientv1.ClientFrame_Connect{Connect: m}
	case "subscribe":
		return in.subscribe(f)
	case "unsubscribe":
		f.Frame = &clientv1.ClientFrame_Unsubscribe{Unsubscribe: &clientv1.Unsubscribe{Channel: in.channel()}}
	case "publish":
		return in.publish(f)
	case "history":
		f.Frame = &clientv1.ClientFrame_History{History: &clientv1.History{
			Channel: in.channel(), Epoch: in.text(fEpoch), Offset: in.optU53(fOffset),
			Limit: in.u32(fLimit), Reverse: in.flag(fReverse),
		}}
	case "presence":
		f.Frame = &clientv1.ClientFrame_Presence{
			Presence: &clientv1.Presence{Channel: in.channel(), CountsOnly: in.flag(fCountsOnly)},
		}
	case "refresh":
		f.Frame = &clientv1.ClientFrame_Refresh{Refresh: &clientv1.Refresh{Token: in.text(fToken)}}
	case "ping":
		f.Frame = &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}
	default:
		if in.err == nil {
			return fmt.Errorf("type: %.32q is unknown", kind)
		}
	}
	return in.err
}

// channel reads a name that must be good.
func (f *fields) channel() string {
	name := f.text(fChannel)
	if f.err == nil {
		f.err = CheckChannel(name)
	}
	return name
}

func (f *fields) request() *clientv1.SubscriptionRequest {
	return &clientv1.SubscriptionRequest{
		Channel: f.text(fChannel), Epoch: f.text(fEpoch), Offset: f.optU53(fOffset),
		Last: f.u32(fLast), Presence: f.flag(fPresence),
	}
}

func (f *fields) subscribe(out *clientv1.ClientFrame) error {
	m := &clientv1.Subscribe{Single: !f.has(fSubscriptions)}
	out.Frame = &clientv1.ClientFrame_Subscribe{Subscribe: m}
	if m.Single {
		if !f.has(fChannel) {
			return errors.New("channel or subscriptions is missing")
		}
		m.Subscriptions = []*clientv1.SubscriptionRequest{f.request()}
		return f.err
	}
	f.each(fSubscriptions, func(f *fields) { m.Subscriptions = append(m.Subscriptions, f.request()) })
	if f.err == nil && len(m.Subscriptions) == 0 {
		return errors.New("subscriptions: must not be empty")
	}
	return f.err
}

func (f *fields) publish(out *clientv1.ClientFrame) error {
	m := &clientv1.Publish{Channel: f.channel(), Key: f.text(fKey), Meta: f.meta()}
	out.Frame = &clientv1.ClientFrame_Publish{Publish: m}
	switch {
	case f.err != nil:
	case f.raw[fData] != nil && f.has(fDataB64):
		return errors.New("data and data_b64: only one of them may be given")
	case f.raw[fData] == nil && !f.has(fDataB64):
		return errors.New("data is missing")
	default:
		m.Data, m.Binary = f.payload()
	}
	if f.err == nil {
		return CheckKey(m.Key)
	}
	return f.err
}

// decodePing is the short way for the frame that idle clients send.
func decodePing(line []byte) (uint32, bool) {
	const head = `{"type":"ping","id":`
	if len(line) < len(head)+2 || string(line[:len(head)]) != head {
		return 0, false
	}
	digits := line[len(head) : len(line)-1]
	if len(digits) > 10 || digits[0] == '0' || line[len(line)-1] != '}' {
		return 0, false
	}
	var id uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = id*10 + uint64(c-'0')
	}
	return uint32(id), id <= math.MaxUint32
}

// DecodeServer reads one reply or push. Unknown fields are ignored; an unknown
// type gives a frame without content, which clients ignore too. The frame shares
// nothing with line.
func DecodeServer(line []byte) (*clientv1.ServerFrame, error) {
	var in fields
	if err := in.read(line); err != nil {
		return nil, fmt.Errorf("decode frame: %w", err)
	}
	kind := in.text(fType)
	f := &clientv1.ServerFrame{Id: in.u32(fID)}
	if in.err == nil {
		fillServer(kind, f, &in)
	}
	if in.err != nil {
		return nil, fmt.Errorf("decode %.32q: %w", kind, in.err)
	}
	return f, nil
}

// clone keeps a raw value beyond the text it stands in.
func (f *fields) clone(id field) []byte { return slices.Clone(f.raw[id]) }
