package wire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// The JSON form of the router's API over HTTP. Unlike frames, whose unknown fields
// are ignored so that old and new clients mix, requests with a field that is not
// known are refused: a key that is misspelt would make repeats harmful, silently.

// publicationFields are those of one event.
var publicationFields = []field{fChannel, fData, fDataB64, fKey, fMeta}

// DecodePublish reads one event: channel, data (any JSON) or data_b64, key, meta.
// Channel and data are checked by who publishes.
func DecodePublish(text []byte, into *routerv1.PublishRequest) error {
	var in fields
	if err := in.readOnly(text, publicationFields); err != nil {
		return err
	}
	into.Publication = in.publication()
	return in.err
}

// DecodePublishBatch reads {"publications": […]}, at most so many.
func DecodePublishBatch(text []byte, most int, into *routerv1.PublishBatchRequest) error {
	var in fields
	if err := in.readOnly(text, []field{fPublications}); err != nil {
		return err
	}
	in.items(fPublications, most, func(n int, value []byte) error {
		var one fields
		if value[0] != '{' {
			return fmt.Errorf("%s: an object is expected", path(fPublications, n))
		}
		if err := one.readOnly(value, publicationFields); err != nil {
			return fmt.Errorf("%s: %w", path(fPublications, n), err)
		}
		into.Publications = append(into.Publications, one.publication())
		if one.err != nil {
			return fmt.Errorf("%s.%w", path(fPublications, n), one.err)
		}
		return nil
	})
	return in.err
}

// DecodeBroadcast reads an event with channels instead of channel, at most so many.
func DecodeBroadcast(text []byte, most int, into *routerv1.BroadcastRequest) error {
	var in fields
	if err := in.readOnly(text, append([]field{fChannels}, publicationFields[1:]...)); err != nil {
		return err
	}
	in.items(fChannels, most, func(n int, value []byte) error {
		name, ok := "", value[0] == '"'
		if ok {
			name, ok = unquote(value)
		}
		if !ok {
			return fmt.Errorf("%s: a string is expected", path(fChannels, n))
		}
		into.Channels = append(into.Channels, name)
		return nil
	})
	into.Publication = in.publication()
	return in.err
}

// readOnly takes an object that has no other fields than these.
func (f *fields) readOnly(text []byte, known []field) error {
	return eachField(text, func(name, value []byte) error {
		id := lookup(name)
		if !slices.Contains(known, id) {
			return fmt.Errorf("%.40s: unknown field", strings.Trim(string(name), `"`))
		}
		f.raw[id] = value
		return nil
	})
}

// items reads an array that must be there.
func (f *fields) items(id field, most int, visit func(n int, value []byte) error) {
	if !f.has(id) || f.raw[id][0] != '[' {
		f.wrong(id, "an array is expected")
		return
	}
	s := scanner{b: f.raw[id], i: 1}
	for n, more := 0, s.peek() != ']'; more && f.err == nil; n++ {
		if n == most {
			f.wrong(id, "at most %d are allowed", most)
			return
		}
		value, _ := s.value() // the whole text was checked before
		f.err = visit(n, value)
		more, _ = s.comma(']')
	}
}

func (f *fields) publication() *routerv1.Publication {
	p := &routerv1.Publication{Channel: f.text(fChannel), Key: f.text(fKey), Meta: f.meta()}
	switch json, binary := f.raw[fData] != nil, f.has(fDataB64); {
	case f.err != nil:
	case json == binary:
		f.err = errors.New("data, data_b64: exactly one is expected")
	case json:
		p.Data = &routerv1.Publication_Json{Json: string(f.raw[fData])}
	default:
		data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(f.text(fDataB64), "="))
		if err != nil {
			f.wrong(fDataB64, "%v", err)
		}
		p.Data = &routerv1.Publication_Binary{Binary: data}
	}
	return p
}

// AppendPlaced appends where an event is.
func AppendPlaced(dst []byte, p *routerv1.Placed) []byte {
	o := begin(dst)
	placed(&o, p)
	return o.end()
}

func placed(o *object, p *routerv1.Placed) {
	o.str("channel", p.GetChannel())
	o.str("epoch", p.GetEpoch())
	o.num("offset", p.GetOffset())
	o.bool("repeat", p.GetRepeat())
	o.optStr("durability", DurabilityWord(p.GetDurability()))
}

// DurabilityWord is "committed" or "none"; "" if a router did not say.
func DurabilityWord(d routerv1.Durability) string {
	switch d {
	case routerv1.Durability_DURABILITY_COMMITTED:
		return "committed"
	case routerv1.Durability_DURABILITY_NONE:
		return "none"
	}
	return ""
}

// AppendPublishResults appends {"results": […]}: where each event is, or
// {"error": {code, message, retry_after_ms}}.
func AppendPublishResults(dst []byte, results []*routerv1.PublishResult) []byte {
	o := begin(dst)
	list(&o, "results", results, func(o *object, r *routerv1.PublishResult) {
		failure := r.GetFailure()
		if failure == nil {
			placed(o, r.GetPlaced())
			return
		}
		o.key("error")
		o.open()
		status(o, failure.Code, failure.Message, uint64(failure.RetryAfterMs))
		o.close()
	})
	return o.end()
}

// AppendStatus appends an error: a gRPC status code as a word, and when to come
// back (0: not said).
func AppendStatus(dst []byte, code uint32, message string, retryAfterMS uint64) []byte {
	o := begin(dst)
	status(&o, code, message, retryAfterMS)
	return o.end()
}

func status(o *object, code uint32, message string, retryAfterMS uint64) {
	o.str("code", StatusWord(code))
	o.str("message", message)
	o.optNum("retry_after_ms", retryAfterMS)
}

// AppendHistory appends a page of history.
func AppendHistory(dst []byte, page *routerv1.ReadHistoryResponse) []byte {
	o := begin(dst)
	o.str("channel", page.Channel)
	o.str("epoch", page.Epoch)
	o.num("head", page.Head)
	o.num("first", page.First)
	list(&o, "events", page.Events, func(o *object, e *routerv1.HistoryEvent) {
		data, binary := []byte(e.GetJson()), false
		if d, ok := e.Data.(*routerv1.HistoryEvent_Binary); ok {
			data, binary = d.Binary, true
		}
		o.b = appendEventBody(o.b, e.Offset, data, binary, e.TimeMs, e.From)
		if len(e.Meta) > 0 {
			o.first = false
			o.raw("meta", MetaJSON(e.Meta))
		}
	})
	o.bool("more", page.More)
	return o.end()
}

// statusWords are gRPC's status codes as words, at their numbers.
var statusWords = [...]string{
	"ok", "canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists", "permission_denied",
	"resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented", "internal", "unavailable",
	"data_loss", "unauthenticated",
}

// StatusWord names a gRPC status code.
func StatusWord(code uint32) string {
	if int(code) >= len(statusWords) {
		return statusWords[2]
	}
	return statusWords[code]
}
