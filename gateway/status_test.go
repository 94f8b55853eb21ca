package gateway

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// statusOf reads the table in the last section of PROTOCOL.md: what edges do with each
// frame and at the upgrade.
func statusOf(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../proto/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Status\n")
	if !ok {
		t.Fatal("PROTOCOL.md has no section Status")
	}
	rows := regexp.MustCompile(`(?m)^\| (.+) \| (.+) \|$`).FindAllStringSubmatch(section, -1)
	says := make(map[string]string)
	for _, row := range rows[1:] {
		kind, _, _ := strings.Cut(row[1], ": ")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			says[kind+" "+name[1]] = row[2]
		}
	}
	return says
}

func framesOf(m protoreflect.ProtoMessage) (names []string) {
	fields := m.ProtoReflect().Descriptor().Oneofs().ByName("frame").Fields()
	for i := range fields.Len() {
		names = append(names, string(fields.Get(i).Name()))
	}
	return names
}

// What PROTOCOL.md says of edges is what edges do: every frame of the protocol is in its
// table, and is answered, or sent, exactly if the table says so.
func TestTheStatusOfTheProtocolIsWhatEdgesDo(t *testing.T) {
	t.Parallel()
	says, does := statusOf(t), make(map[string]string)
	for _, name := range framesOf(&clientv1.ClientFrame{}) {
		does["commands "+name] = "answered"
	}
	for _, name := range framesOf(&clientv1.ServerFrame{}) {
		does["frames "+name] = "not sent"
	}
	heard := func(f frame) frame {
		does["frames "+f["type"].(string)] = "sent"
		return f
	}
	everyCommand(t, does, heard)
	everyPush(t, heard)
	w := newWorld(t, nil)
	for _, protocol := range []string{"spillway.v1.json", "spillway.v1.proto"} {
		does["subprotocols "+protocol] = "spoken"
		if strings.HasPrefix(w.head("Sec-WebSocket-Protocol: "+protocol+"\r\n"), "HTTP/1.1 400") {
			does["subprotocols "+protocol] = "refused with HTTP 400"
		}
	}
	does["extensions permessage-deflate"] = "negotiated"
	if !strings.Contains(w.head("Sec-WebSocket-Extensions: permessage-deflate\r\n"), "permessage-deflate") {
		does["extensions permessage-deflate"] = "not negotiated"
	}
	for _, what := range slices.Sorted(maps.Keys(does)) {
		if says[what] != does[what] {
			t.Errorf("%s: PROTOCOL.md says %q, an edge shows %q", what, says[what], does[what])
		}
	}
	for what := range says {
		if does[what] == "" {
			t.Errorf("PROTOCOL.md speaks of %s, which the protocol does not have", what)
		}
	}
}

// head is the answer to an upgrade, without what follows it.
func (w *world) head(fields string) string {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, upgradeRequest(fields))
	var head strings.Builder
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		if err != nil || line == "\r\n" {
			return head.String()
		}
		head.WriteString(line)
	}
}

// everyCommand sends each one and notes which are not answered as they should be.
func everyCommand(t *testing.T, does map[string]string, heard func(frame) frame) {
	t.Helper()
	w := newResuming(t, nil)
	token := tokenOf(t, nil)
	c := w.connect(byToken(token) + `,"attempt":1`)
	heard(c.expect(`{"type":"connected"}`))
	for i, command := range []struct{ name, fields string }{
		{"subscribe", `,"channel":"chat:a"`},
		{"publish", `,"channel":"chat:a","data":1`},
		{"history", `,"channel":"chat:a","limit":1`},
		{"presence", `,"channel":"chat:a"`},
		{"refresh", fmt.Sprintf(`,"token":%q`, token)},
		{"ping", ""},
		{"unsubscribe", `,"channel":"chat:a"`},
	} {
		c.send(fmt.Sprintf(`{"type":%q,"id":%d%s}`, command.name, i+2, command.fields))
		f := heard(c.next())
		for f["id"] == nil { // a push between
			f = heard(c.next())
		}
		if f["type"] == "error" {
			does["commands "+command.name] = fmt.Sprintf("answered `%v`", f["code"])
		}
	}
}

// everyPush makes edges say what they say unasked.
func everyPush(t *testing.T, heard func(frame) frame) {
	t.Helper()
	w := newWorld(t, func(c *Config) { c.Loops, c.MaxConns, c.Margin = 1, 2, 1 })
	w.publish("chat:a", `1`)
	c := w.connect(subscribing("chat:a"))
	heard(c.expect(`{"type":"connected","subscriptions":[{"channel":"chat:a","offset":1}]}`))
	w.set(func() { w.lossy, w.first["chat:a"] = true, 3 })
	w.publish("chat:a", `2`)
	w.publish("chat:a", `3`)
	w.set(func() { w.lossy = false })
	w.publish("chat:a", `4`)
	heard(c.expect(`{"type":"gap","channel":"chat:a","offset":3}`))
	heard(c.expect(`{"type":"event","channel":"chat:a","offset":4}`))
	heard(w.dial("spillway.v1.json").expect(`{"type":"busy"}`))

	f := newFleet(t, "e1", "e2")
	c = f.edges["e1"].connect(`,"attempt":1`)
	heard(c.expect(`{"type":"connected"}`))
	f.edges["e1"].leave()
	heard(c.expect(`{"type":"reconnect"}`))
	f.edges["e1"].hurry()
	for {
		if _, err := c.line(); err != nil {
			return
		}
	}
}
