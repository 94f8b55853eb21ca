package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// Problem says why a command is refused.
type Problem struct {
	ID      uint32 // of the command, if it could be read; else 0
	Code    clientv1.ErrorCode
	Message string
}

func (p *Problem) Error() string { return ErrorWord(p.Code) + ": " + p.Message }

// CompactJSON validates one JSON value and drops the white space between its
// tokens; values (numbers, escapes) stay as they were written. The result is
// data itself if there was nothing to drop.
func CompactJSON(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("data: not UTF-8")
	}
	var buf bytes.Buffer
	buf.Grow(len(data))
	if err := json.Compact(&buf, data); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("data: not JSON at byte %d: %v", syntax.Offset, err)
		}
		return nil, fmt.Errorf("data: not JSON: %v", err)
	}
	return buf.Bytes(), nil
}

// askJSON is an entry of a subscribe or connect command.
type askJSON struct {
	Channel  string  `json:"channel"`
	Epoch    string  `json:"epoch"`
	Offset   *uint64 `json:"offset"`
	Last     uint32  `json:"last"`
	Presence bool    `json:"presence"`
}

// commandJSON has the fields of all commands: a command is small, and one
// decode is cheaper than two.
type commandJSON struct {
	Type string  `json:"type"`
	ID   *uint64 `json:"id"`
	askJSON
	Token         string            `json:"token"`
	Ticket        string            `json:"ticket"`
	Attempt       *uint64           `json:"attempt"`
	Subscriptions *[]askJSON        `json:"subscriptions"`
	Client        string            `json:"client"`
	Data          json.RawMessage   `json:"data"`
	DataB64       *string           `json:"data_b64"`
	Meta          map[string]string `json:"meta"`
	Key           string            `json:"key"`
	Limit         uint32            `json:"limit"`
	Reverse       bool              `json:"reverse"`
	CountsOnly    bool              `json:"counts_only"`
}

// DecodeClient reads one command. Unknown fields are ignored, of a field that
// stands twice the last counts. The frame shares nothing with line.
func DecodeClient(line []byte) (*clientv1.ClientFrame, *Problem) {
	if id, ok := decodePing(line); ok {
		return &clientv1.ClientFrame{Id: id, Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}}, nil
	}
	var c commandJSON
	if err := json.Unmarshal(line, &c); err != nil {
		return nil, &Problem{ID: commandID(c.ID), Code: badRequest, Message: jsonProblem(err)}
	}
	f := &clientv1.ClientFrame{Id: commandID(c.ID)}
	bad := func(format string, args ...any) (*clientv1.ClientFrame, *Problem) {
		return nil, &Problem{ID: f.Id, Code: badRequest, Message: fmt.Sprintf(format, args...)}
	}
	if c.Type == "" {
		return bad("type is missing")
	}
	if c.ID == nil {
		return bad("id is missing")
	}
	if f.Id == 0 {
		return bad("id: must be between 1 and 4294967295")
	}
	if err := c.checkText(line); err != nil {
		return bad("%v", err)
	}
	if err := c.fill(f); err != nil {
		return bad("%v", err)
	}
	return f, nil
}

// fill puts the command into f.
func (c *commandJSON) fill(f *clientv1.ClientFrame) (err error) {
	switch c.Type {
	case "connect":
		m := &clientv1.Connect{Token: c.Token, Ticket: c.Ticket, Attempt: c.Attempt, Client: c.Client}
		if c.Subscriptions != nil {
			m.Subscriptions, err = asks(*c.Subscriptions)
		}
		f.Frame = &clientv1.ClientFrame_Connect{Connect: m}
	case "subscribe":
		m := &clientv1.Subscribe{Single: c.Subscriptions == nil}
		list := []askJSON{c.askJSON}
		if !m.Single {
			list = *c.Subscriptions
		}
		if m.Subscriptions, err = asks(list); err == nil && len(list) == 0 {
			err = errors.New("subscriptions: must not be empty")
		}
		f.Frame = &clientv1.ClientFrame_Subscribe{Subscribe: m}
	case "unsubscribe":
		f.Frame, err = &clientv1.ClientFrame_Unsubscribe{
			Unsubscribe: &clientv1.Unsubscribe{Channel: c.Channel},
		}, CheckChannel(c.Channel)
	case "publish":
		var m *clientv1.Publish
		m, err = c.publish()
		f.Frame = &clientv1.ClientFrame_Publish{Publish: m}
	case "history":
		f.Frame, err = &clientv1.ClientFrame_History{History: &clientv1.History{
			Channel: c.Channel, Epoch: c.Epoch, Offset: c.Offset, Limit: c.Limit, Reverse: c.Reverse,
		}}, errors.Join(CheckChannel(c.Channel), checkOffset(c.Offset))
	case "presence":
		f.Frame, err = &clientv1.ClientFrame_Presence{
			Presence: &clientv1.Presence{Channel: c.Channel, CountsOnly: c.CountsOnly},
		}, CheckChannel(c.Channel)
	case "refresh":
		f.Frame = &clientv1.ClientFrame_Refresh{Refresh: &clientv1.Refresh{Token: c.Token}}
	case "ping":
		f.Frame = &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}
	default:
		err = fmt.Errorf("type: %.32q is unknown", c.Type)
	}
	return err
}

func (c *commandJSON) publish() (*clientv1.Publish, error) {
	m := &clientv1.Publish{Channel: c.Channel, Meta: c.Meta, Key: c.Key}
	if err := errors.Join(CheckChannel(c.Channel), CheckKey(c.Key)); err != nil {
		return m, err
	}
	var err error
	switch {
	case c.DataB64 != nil && c.Data != nil:
		err = errors.New("data and data_b64: only one of them may be given")
	case c.DataB64 != nil:
		m.Binary = true
		text := strings.TrimRight(*c.DataB64, "=")
		if m.Data, err = base64.RawStdEncoding.DecodeString(text); err != nil {
			err = fmt.Errorf("data_b64: %v", err)
		}
	case c.Data != nil:
		m.Data, err = CompactJSON(c.Data)
	default:
		err = errors.New("data is missing")
	}
	return m, err
}

func asks(in []askJSON) ([]*clientv1.SubscriptionRequest, error) {
	out := make([]*clientv1.SubscriptionRequest, len(in))
	for i, a := range in {
		if err := checkOffset(a.Offset); err != nil {
			return nil, err
		}
		out[i] = &clientv1.SubscriptionRequest{
			Channel: a.Channel, Epoch: a.Epoch, Offset: a.Offset, Last: a.Last, Presence: a.Presence,
		}
	}
	return out, nil
}

func checkOffset(offset *uint64) error {
	if offset != nil && *offset > MaxOffset {
		return fmt.Errorf("offset: %d is over 2^53-1", *offset)
	}
	return nil
}

// checkText refuses names that the JSON decoder had to repair: a lone surrogate
// would otherwise become another channel's name.
func (c *commandJSON) checkText(line []byte) error {
	if !bytes.Contains(line, []byte(`\u`)) {
		return nil
	}
	names := []string{c.Channel, c.Key, c.Epoch}
	if c.Subscriptions != nil {
		for _, s := range *c.Subscriptions {
			names = append(names, s.Channel)
		}
	}
	for _, name := range names {
		if strings.ContainsRune(name, utf8.RuneError) {
			return errors.New("a name has an escape that is no character")
		}
	}
	return nil
}

const badRequest = clientv1.ErrorCode_ERROR_CODE_BAD_REQUEST

func commandID(id *uint64) uint32 {
	if id == nil || *id > math.MaxUint32 {
		return 0
	}
	return uint32(*id)
}

func jsonProblem(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not JSON at byte %d: %v", syntax.Offset, err)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Sprintf("%s: %s is not what this field takes", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Sprintf("a frame is a JSON object, this is: %s", kind.Value)
	}
	return "not JSON: " + err.Error()
}

// decodePing is the short way for the frame that idle clients send.
func decodePing(line []byte) (uint32, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"type":"ping","id":`))
	if !ok || len(rest) < 2 || len(rest) > 11 || rest[len(rest)-1] != '}' || rest[0] == '0' {
		return 0, false
	}
	var id uint64
	for _, c := range rest[:len(rest)-1] {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = id*10 + uint64(c-'0')
	}
	return uint32(id), id <= math.MaxUint32
}
