package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/proto/wire"
)

func TestPlainWebSocketClientSubscribesByHand(t *testing.T) {
	w := newWorld(t, nil)
	c := w.dial() // offers no subprotocol
	c.send(`{"type":"connect","id":1}`)
	c.expect(`{"type":"connected","id":1,"node":"edge-1","resumed":false,"ping_interval_ms":30000,"subscriptions":[]}`)
	c.send(`{"type":"subscribe","id":2,"channel":"chat:room-7"}`)
	c.expect(`{"type":"subscribed","id":2,"channel":"chat:room-7","offset":0,"recovered":false}`)
	w.publish("chat:room-7", `{"text":"hi"}`)
	c.expect(`{"type":"event","channel":"chat:room-7","offset":1,"data":{"text":"hi"}}`)
	c.send(`{"type":"publish","id":3,"channel":"chat:room-7","data":{ "n" : 9007199254740991 }}` + "\n" + `{"type":"ping","id":4}`)
	got := map[string]frame{}
	for range 3 {
		f := c.next()
		got[f["type"].(string)] = f
	}
	for _, kind := range []string{"published", "event", "pong"} {
		if got[kind] == nil {
			t.Errorf("no %s: %v", kind, got)
		}
	}
	c.send(`{"type":"unsubscribe","id":5,"channel":"chat:room-7"}`)
	c.expect(`{"type":"unsubscribed","id":5,"channel":"chat:room-7"}`)
	c.send(`{"type":"unsubscribe","id":6,"channel":"chat:room-7"}`)
	c.expect(`{"type":"unsubscribed","id":6}`)
	c.send(`{"type":"history","id":7,"channel":"chat:room-7","limit":10}`)
	c.expect(`{"type":"history","id":7,"events":[{"offset":1},{"offset":2,"data":{"n":9007199254740991}}]}`)
}

func TestConnectRestoresSubscriptionsInOneFrame(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 5 {
		w.publish("a", fmt.Sprint(i))
	}
	c := w.connect(`,"subscriptions":[{"channel":"a","epoch":"7","offset":2},{"channel":"b"},{"channel":"c","epoch":"6","offset":2},{"channel":"none:x"},{"channel":"a\u0007"},{"channel":"d","epoch":"7","offset":9}]`)
	f := c.expect(`{"type":"connected","id":1,"subscriptions":[
		{"channel":"a","epoch":"7","offset":5,"recovered":true},
		{"channel":"b","offset":0,"recovered":false},
		{"channel":"c","offset":0,"recovered":false},
		{"channel":"none:x","error":{"code":"not_found"}},
		{"error":{"code":"bad_request"}},
		{"channel":"d","offset":0,"recovered":false}]}`)
	c.expectEvents("a", 3, 5)
	entries := f["subscriptions"].([]any)
	if entries[1].(map[string]any)["reload_after_ms"] != nil {
		t.Error("a client without a position was told to reload")
	}
	for _, i := range []int{2, 5} {
		if entries[i].(map[string]any)["reload_after_ms"] == nil {
			t.Errorf("a lost position got no slot to reload: %v", entries[i])
		}
	}
}

func TestTheLoadFigureTellsWhatIsCarried(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConns, c.Margin = 50, 5 })
	for range 2 {
		w.connect(`,"subscriptions":[{"channel":"a"},{"channel":"b"}]`).expect(`{"type":"connected"}`)
	}
	eventually(t, "two conns, four subscriptions, two channels, room for 45", func() bool {
		f := new(presence.Figure)
		w.edge.Load(f)
		return f.Conns == 2 && f.Subscriptions == 4 && f.Channels == 2 && f.Capacity == 45
	})
}

func TestLastGivesTheNewestEventsFirst(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 5 {
		w.publish("a", fmt.Sprint(i))
	}
	c := w.connect("")
	c.expect(`{"type":"connected"}`)
	c.send(`{"type":"subscribe","id":2,"channel":"a","last":2}`)
	c.expect(`{"type":"subscribed","id":2,"offset":5,"from":3,"recovered":false}`)
	c.expectEvents("a", 4, 5)
	w.publish("a", "5")
	c.expectEvents("a", 6, 6)
}

func TestARouterThatIsAwayIsPendingAndNothingIsLost(t *testing.T) {
	w := newWorld(t, nil)
	w.publish("a", "1")
	w.set(func() { w.away = true })
	c := w.connect(`,"subscriptions":[{"channel":"a","epoch":"7","offset":0}]`)
	c.expect(`{"type":"connected","subscriptions":[{"channel":"a","pending":true}]}`)
	w.publish("a", "2")
	w.set(func() { w.away = false })
	c.expect(`{"type":"subscribed","channel":"a","recovered":true,"epoch":"7"}`)
	c.expectEvents("a", 1, 2)
	w.publish("a", "3")
	c.expectEvents("a", 3, 3)
}

func TestWhatTheBusLostIsRepairedInOrder(t *testing.T) {
	w := newWorld(t, nil)
	c := w.connect(`,"subscriptions":[{"channel":"a"}]`)
	c.expect(`{"type":"connected"}`)
	w.publish("a", "1")
	w.set(func() { w.lossy = true })
	for range 5 {
		w.publish("a", "2")
	}
	w.set(func() { w.lossy = false })
	w.publish("a", "7")
	c.expectEvents("a", 1, 7)
}

func TestManySubscribersOnBothLoopsGetEveryEventOnce(t *testing.T) {
	w := newWorld(t, nil)
	var clients []*client
	for range 20 {
		c := w.connect(`,"subscriptions":[{"channel":"a"}]`)
		c.expect(`{"type":"connected"}`)
		clients = append(clients, c)
	}
	for i := range 200 {
		w.publish("a", fmt.Sprint(i))
	}
	for _, c := range clients {
		c.expectEvents("a", 1, 200)
	}
}

func TestSlowConsumerDoesNotDelayOthersAndCatchesUp(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.SendQueueBytes = 64 << 10 })
	slow := w.connect(`,"subscriptions":[{"channel":"a"}]`)
	slow.expect(`{"type":"connected"}`)
	fast := w.connect(`,"subscriptions":[{"channel":"a"}]`)
	fast.expect(`{"type":"connected"}`)
	const n = 3000
	pad := strings.Repeat("x", 4000) // 16 MB: far over any socket buffer
	for i := 1; i <= n; i++ {
		w.publish("a", fmt.Sprintf(`"%d%s"`, i, pad))
		fast.expectEvents("a", i, i)
	}
	eventually(t, "the slow one overflowed", func() bool { return counter(t, w.edge.metrics.overflows) > 0 })
	slow.expectEvents("a", 1, n)
}

func TestBadFramesAreAnsweredAndCostNothingElse(t *testing.T) {
	w := newWorld(t, nil)
	c := w.connect("")
	c.expect(`{"type":"connected"}`)
	for _, x := range []struct{ send, want string }{
		{`{`, `{"type":"error","code":"bad_request"}`},
		{`[1]`, `{"type":"error","code":"bad_request"}`},
		{`{"type":"dance","id":9}`, `{"type":"error","id":9,"code":"bad_request"}`},
		{`{"type":"ping"}`, `{"type":"error","code":"bad_request"}`},
		{`{"type":"ping","id":10,"color":"red"}`, `{"type":"pong","id":10}`},
		{`{"type":"connect","id":11}`, `{"type":"error","id":11,"code":"bad_request"}`},
		{`{"type":"subscribe","id":12,"channel":""}`, `{"type":"subscribed","id":12,"error":{"code":"bad_request"}}`},
		{`{"type":"subscribe","id":13,"channel":"` + strings.Repeat("x", 256) + `"}`, `{"type":"subscribed","id":13,"error":{"code":"bad_request"}}`},
		{`{"type":"subscribe","id":14,"channel":"a\r\nb"}`, `{"type":"subscribed","id":14,"error":{"code":"bad_request"}}`},
		{`{"type":"subscribe","id":15,"channel":"a.*.> b"}`, `{"type":"subscribed","id":15,"channel":"a.*.> b","recovered":false}`},
		{`{"type":"subscribe","id":16,"channel":"a.*.> b"}`, `{"type":"subscribed","id":16,"error":{"code":"bad_request"}}`},
		{`{"type":"presence","id":17,"channel":"a"}`, `{"type":"error","id":17,"code":"not_found"}`},
		{`{"type":"history","id":18,"channel":"a","limit":0}`, `{"type":"error","id":18,"code":"bad_request"}`},
	} {
		c.send(x.send)
		c.expect(x.want)
	}
	w.publish("a.*.> b", "1")
	c.expectEvents("a.*.> b", 1, 1)
}

func TestFramesThatBreakTheLimitsCloseTheConn(t *testing.T) {
	for name, x := range map[string]struct {
		send func(*client)
		code ws.StatusCode
	}{
		"too large": {func(c *client) { c.send(strings.Repeat("x", 65<<10)) }, 1009},
		"announced too large": {func(c *client) {
			ws.WriteHeader(c.conn, ws.Header{Fin: true, OpCode: ws.OpText, Masked: true, Length: 1 << 40})
		}, 1009},
		"not UTF-8":     {func(c *client) { c.send("{\"\xff\"}") }, 1007},
		"not masked":    {func(c *client) { ws.WriteFrame(c.conn, ws.NewTextFrame([]byte("{}"))) }, 1002},
		"reserved bits": {func(c *client) { ws.WriteHeader(c.conn, ws.Header{Fin: true, Rsv: 4, OpCode: ws.OpText, Masked: true}) }, 1002},
		"binary":        {func(c *client) { wsutil.WriteClientBinary(c.conn, []byte("x")) }, 1003},
		"empty fragments for ever": {func(c *client) {
			for i := range 200 {
				op := ws.OpContinuation
				if i == 0 {
					op = ws.OpText
				}
				if ws.WriteHeader(c.conn, ws.Header{OpCode: op, Masked: true}) != nil {
					return
				}
			}
		}, 1009},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			c := w.connect("")
			c.t = t
			c.expect(`{"type":"connected"}`)
			x.send(c)
			c.expectClose(x.code)
		})
	}
}

// raw sends bytes to the public port and returns all that comes back.
func (w *world) raw(text string) string {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, text)
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

func upgradeRequest(header string) string {
	return "GET /x/v1/ws HTTP/1.1\r\nHost: example.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" + header + "\r\n"
}

func TestHandshakes(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.HandshakeTimeout = 300 * time.Millisecond
		c.Origins = []string{"good.test"}
	})
	for name, x := range map[string]struct{ request, want string }{
		"foreign origin":      {upgradeRequest("Origin: https://evil.test\r\n"), "HTTP/1.1 403"},
		"unknown subprotocol": {upgradeRequest("Sec-WebSocket-Protocol: other\r\n"), "HTTP/1.1 400"},
		"no upgrade":          {"GET /v1/ws HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 4"},
		"another path":        {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404"},
		"not HTTP":            {"\x16\x03\x01 hello", "HTTP/1.1 400"},
		"a body":              {"POST /v1/connect HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 4"},
		"half a handshake":    {"GET /v1/ws HTTP/1.1\r\nHost:", ""},
		"16 KiB of header":    {"GET /v1/ws HTTP/1.1\r\nX: " + strings.Repeat("x", 17<<10), "HTTP/1.1 431"},
		"advice":              {"GET /v1/connect HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200"},
		"advice, preflight":   {"OPTIONS /v1/connect HTTP/1.1\r\nHost: a\r\nOrigin: https://good.test\r\n\r\n", "HTTP/1.1 204"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.raw(x.request); !strings.HasPrefix(got, x.want) || x.want == "" && got != "" {
				t.Errorf("got %.200q, want %q", got, x.want)
			}
		})
	}
}

func TestAnEndlessHeaderCostsSixteenKiB(t *testing.T) {
	w := newWorld(t, nil)
	conn, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, "GET /v1/ws HTTP/1.1\r\nX: ")
	chunk := strings.Repeat("x", 64<<10)
	for range 1000 { // 64 MB, if anybody reads them
		if _, err := io.WriteString(conn, chunk); err != nil {
			break
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestAdviceIsNeverCached(t *testing.T) {
	w := newWorld(t, nil)
	resp, err := http.Get("http://" + w.edge.Addr() + "/v1/connect")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	var advice map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&advice); err != nil || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v %v %v", advice, resp.Header, err)
	}
}

func TestAFullEdgeRefusesInOneWriteThatSaysWhen(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConns, c.Margin = 3, 1 })
	for range 2 {
		w.connect("").expect(`{"type":"connected"}`)
	}
	c := w.dial(wire.ProtocolJSON)
	f := c.expect(`{"type":"busy","scope":"node"}`)
	if ms := f["retry_after_ms"].(float64); ms < 1000 || ms > 30_000 {
		t.Errorf("come back in %v ms", ms)
	}
	c.expectClose(4010)
	if got := w.raw(upgradeRequest("")); !strings.HasPrefix(got, "HTTP/1.1 503") || !strings.Contains(got, "Retry-After: ") || !strings.Contains(got, "retry_after_ms") {
		t.Errorf("a client that speaks no subprotocol got %q", got)
	}
}

func TestACloseIsEchoedAndThePlaceIsFreed(t *testing.T) {
	w := newWorld(t, nil)
	c := w.connect(`,"subscriptions":[{"channel":"a"}]`)
	c.expect(`{"type":"connected"}`)
	ws.WriteFrame(c.conn, ws.MaskFrameInPlace(ws.NewCloseFrame(ws.NewCloseFrameBody(1000, ""))))
	c.expectClose(1000)
	c.conn.Close()
	eventually(t, "the conn is gone", func() bool { return w.edge.counts.conns.Load() == 0 && w.edge.metrics.subscriptionCount() == 0 })
}

func TestSilentClientsArePingedThenClosed(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.PingInterval = 2 * time.Second })
	c := w.connect("")
	c.expect(`{"type":"connected"}`)
	pinged := false
	for {
		h, err := ws.ReadHeader(c.in)
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, h.Length)
		if _, err := io.ReadFull(c.in, body); err != nil {
			t.Fatal(err)
		}
		switch h.OpCode {
		case ws.OpPing:
			pinged = true // and says nothing
		case ws.OpText:
			if !strings.Contains(string(body), `"close":4004`) {
				t.Errorf("before the close came %s", body)
			}
		case ws.OpClose:
			if code, _ := ws.ParseCloseFrameData(body); code != 4004 || !pinged {
				t.Errorf("closed with %d, pinged: %v", code, pinged)
			}
			return
		}
	}
}

func TestALeavingEdgeSpreadsItsCloses(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.DrainDeadline = 4 * time.Second })
	var clients []*client
	for range 10 {
		c := w.connect("")
		c.expect(`{"type":"connected"}`)
		clients = append(clients, c)
	}
	w.leave()
	closed := make(chan time.Time, len(clients))
	for _, c := range clients {
		go func() { // ends with its connection
			last := ""
			for {
				line, err := c.line()
				if err == nil {
					last = line
					continue
				}
				if e, ok := err.(wsutil.ClosedError); !ok || e.Code != 4001 {
					t.Errorf("ended with %v", err)
				}
				if !strings.Contains(last, `"code":"unavailable"`) || !strings.Contains(last, `"temporary":true`) || !strings.Contains(last, `"close":4001`) {
					t.Errorf("before the close came %s", last)
				}
				closed <- time.Now()
				c.conn.Close()
				return
			}
		}()
	}
	first := <-closed
	last := first
	for range len(clients) - 1 {
		last = <-closed
	}
	if last.Sub(first) < 500*time.Millisecond {
		t.Errorf("all closes came within %v", last.Sub(first))
	}
	eventually(t, "no conn is left", func() bool { return w.edge.counts.conns.Load() == 0 })
}

func TestConnsCostNoGoroutine(t *testing.T) {
	w := newWorld(t, nil)
	w.connect("").expect(`{"type":"connected"}`)
	before := runtime.NumGoroutine()
	for range 200 {
		w.connect(`,"subscriptions":[{"channel":"a"}]`).expect(`{"type":"connected"}`)
	}
	eventually(t, "no goroutine stays with a conn", func() bool { return runtime.NumGoroutine() <= before+2 })
}
