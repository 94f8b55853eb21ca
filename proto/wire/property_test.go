package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Any frame that can be sent is read back as it was, a later field of client.proto
// included: the generator follows the descriptors.
func TestAnyClientFrameRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &clientv1.ClientFrame{}
		drawFrame(t, f)
		f.Id = rapid.Uint32Range(1, math.MaxUint32).Draw(t, "id")
		if s := f.GetSubscribe(); s != nil {
			if len(s.Subscriptions) == 0 {
				s.Subscriptions = []*clientv1.SubscriptionRequest{{Channel: "a"}}
			}
			s.Single = s.Single && len(s.Subscriptions) == 1
		}
		line := AppendClient(nil, f)
		mustBeOneLine(t, line)
		got, problem := DecodeClient(line)
		if problem != nil || !proto.Equal(got, f) {
			t.Fatalf("%v\nwas written as %s\nand came back as %v, %v", f, line, got, problem)
		}
	})
}

func TestAnyServerFrameRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &clientv1.ServerFrame{}
		drawFrame(t, f)
		f.Id = rapid.Uint32().Draw(t, "id")
		if s := f.GetSubscribed(); s != nil {
			s.Single = s.Single && len(s.Subscriptions) == 1
		}
		for _, e := range f.GetHistory().GetEvents() {
			e.Channel = "" // told once, by the frame
		}
		line := AppendServer(nil, f)
		mustBeOneLine(t, line)
		got, err := DecodeServer(line)
		if err != nil || !proto.Equal(got, f) {
			t.Fatalf("%v\nwas written as %s\nand came back as %v, %v", f, line, got, err)
		}
	})
}

// The hot path and the general one write the same frame.
func TestAppendEventIsAppendServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := &clientv1.Event{}
		drawMessage(t, e.ProtoReflect())
		bus := &gatewayv1.BusEvent{
			Offset: e.Offset, TimeMs: e.TimeMs, Data: e.Data, Binary: e.Binary, From: e.From, Meta: MetaJSON(e.Meta),
		}
		fast := AppendEvent(nil, e.Channel, bus)
		slow := AppendServer(nil, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Event{Event: e}})
		if !bytes.Equal(fast, slow) {
			t.Fatalf("%s\n%s", fast, slow)
		}
		if meta := ParseMeta(bus.Meta); len(meta) != len(e.Meta) {
			t.Fatalf("%v came back as %v", e.Meta, meta)
		}
	})
}

func mustBeOneLine(t *rapid.T, line []byte) {
	if !json.Valid(line) || bytes.ContainsAny(line, "\n\r") {
		t.Fatalf("%q", line)
	}
}

// drawFrame sets one member of the oneof.
func drawFrame(t *rapid.T, f proto.Message) {
	m := f.ProtoReflect()
	kinds := m.Descriptor().Oneofs().ByName("frame").Fields()
	kind := kinds.Get(rapid.IntRange(0, kinds.Len()-1).Draw(t, "kind"))
	drawMessage(t, m.Mutable(kind).Message())
}

func drawMessage(t *rapid.T, m protoreflect.Message) {
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		fd := all.Get(i)
		name := string(fd.Name())
		switch {
		case name == "channel":
			m.Set(fd, protoreflect.ValueOfString(drawName(t, 1)))
			continue
		case name == "key":
			m.Set(fd, protoreflect.ValueOfString(drawName(t, 0)))
			continue
		case name == "data" || name == "binary":
			continue // together, below
		case name == "info" && rapid.Bool().Draw(t, "has info"):
			m.Set(fd, protoreflect.ValueOfBytes(drawJSON(t)))
			continue
		case name == "info" || fd.Kind() != protoreflect.EnumKind && !rapid.Bool().Draw(t, "has "+name):
			continue
		}
		switch {
		case fd.IsMap():
			for k, v := range rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, name) {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
			}
		case fd.IsList():
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				drawMessage(t, m.Mutable(fd).List().AppendMutable().Message())
			}
		default:
			m.Set(fd, drawScalar(t, m, fd))
		}
	}
	drawData(t, m)
}

func drawScalar(t *rapid.T, m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(fd.Name())
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, name))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, name))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64Range(0, MaxOffset).Draw(t, name))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.IntRange(1, 10).Draw(t, name)))
	case protoreflect.MessageKind:
		v := m.NewField(fd)
		drawMessage(t, v.Message())
		return v
	}
	t.Fatalf("%s: a kind without generator", fd.FullName())
	return protoreflect.Value{}
}

func drawData(t *rapid.T, m protoreflect.Message) {
	data := m.Descriptor().Fields().ByName("data")
	if data == nil {
		return
	}
	if rapid.Bool().Draw(t, "binary") {
		m.Set(m.Descriptor().Fields().ByName("binary"), protoreflect.ValueOfBool(true))
		m.Set(data, protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "data")))
		return
	}
	m.Set(data, protoreflect.ValueOfBytes(drawJSON(t)))
}

func drawJSON(t *rapid.T) []byte {
	return []byte(rapid.SampledFrom([]string{
		"null", "0", "-1.50e+3", "9007199254740993", `"a\u0000\ud800\\"`, "[]", `{"a":[1,{"b":"c d"}],"a":2}`,
	}).Draw(t, "json"))
}

// drawName is a good name of a channel or key.
func drawName(t *rapid.T, least int) string {
	letters := rapid.SliceOfN(rapid.SampledFrom([]rune(`ab:.*>% $"\/é😀`+"\uFFFD\u2028")), least, 40).Draw(t, "name")
	return string(letters)
}
