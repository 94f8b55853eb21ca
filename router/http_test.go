package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

const (
	writerKey = "writer-0123456789"
	readerKey = "reader-0123456789"
	adminKey  = "admin-01234567890"
)

func withHTTP(c *Config) { c.API.HTTPListen = "127.0.0.1:0" }

func withHTTPKeys(c *Config) {
	withHTTP(c)
	c.API.Keys = []api.Key{
		{Name: "w", Secret: writerKey, Rights: []api.Right{api.RightPublish}},
		{Name: "r", Secret: readerKey, Rights: []api.Right{api.RightRead}},
		{Name: "a", Secret: adminKey, Rights: []api.Right{api.RightAdmin}},
	}
}

// curl sends a request as the command would, headers as "Name: value".
func (n *node) curl(verb, path, body string, headers ...string) (status int, header http.Header, text string) {
	n.t.Helper()
	in, err := http.NewRequestWithContext(testContext(n.t), verb, "http://"+n.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	in.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as curl -d says
	for _, h := range headers {
		if h == "" {
			continue
		}
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			in.Host = value
		}
		in.Header.Set(name, value)
	}
	if len(body) > 1<<20 { // so does curl: else the refusal may be lost when the server resets
		in.Header.Set("Expect", "100-continue")
	}
	transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 10 * time.Second}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(in)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" || !json.Valid(out) {
		n.t.Errorf("%s %s: %s %s", verb, path, got, out)
	}
	return resp.StatusCode, resp.Header, strings.TrimSpace(string(out))
}

func TestHTTPPublishesAndReadsLikeGRPC(t *testing.T) {
	n := start(t, nil, withHTTP)
	epoch := ""
	for i, c := range []struct{ verb, path, body, want string }{
		{"POST", "/v1/publish", `{"channel":"chat:a", "data":{ "big" : 9007199254740993 },"key":"k1","meta":{"m":"1"}}`,
			`{"channel":"chat:a","epoch":"EPOCH","offset":1,"repeat":false,"durability":"committed"}`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":0,"key":"k1"}`, `{"channel":"chat:a","epoch":"EPOCH","offset":1,"repeat":true,"durability":"committed"}`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data_b64":"/w=="}`, `{"channel":"chat:a","epoch":"EPOCH","offset":2,"repeat":false,"durability":"committed"}`},
		{"POST", "/v1/publish/batch", `{"publications":[{"channel":"chat:a","data":3},{"channel":"","data":4}]}`,
			`{"results":[{"channel":"chat:a","epoch":"EPOCH","offset":3,"repeat":false,"durability":"committed"},` +
				`{"error":{"code":"invalid_argument","message":"channel: must not be empty"}}]}`},
		{"POST", "/v1/broadcast", `{"channels":["chat:a"],"data":null}`, `{"results":[{"channel":"chat:a","epoch":"EPOCH","offset":4,"repeat":false,"durability":"committed"}]}`},
		{"GET", "/v1/history?channel=chat:a&offset=1&limit=2", "", `{"channel":"chat:a","epoch":"EPOCH","head":4,"first":1,"events":[` +
			`{"offset":2,"data_b64":"/w==","time_ms":0},{"offset":3,"data":3,"time_ms":0}],"more":true}`},
		{"GET", "/v1/history?channel=chat:a&reverse=true&offset=2&epoch=EPOCH", "", `{"channel":"chat:a","epoch":"EPOCH","head":4,"first":1,"events":[` +
			`{"offset":1,"data":{"big":9007199254740993},"time_ms":0,"meta":{"m":"1"}}],"more":false}`},
		{"GET", "/v1/history?channel=chat:none", "", `"events":[],"more":false}`},
	} {
		status, _, text := n.curl(c.verb, strings.ReplaceAll(c.path, "EPOCH", epoch), c.body)
		if i == 0 {
			_, epoch, _ = strings.Cut(text, `"epoch":"`)
			epoch, _, _ = strings.Cut(epoch, `"`)
		}
		var page struct {
			Events []struct {
				TimeMS uint64 `json:"time_ms"`
			}
		}
		_ = json.Unmarshal([]byte(text), &page)
		for _, e := range page.Events {
			text = strings.Replace(text, fmt.Sprint(`"time_ms":`, e.TimeMS), `"time_ms":0`, 1)
		}
		if want := strings.ReplaceAll(c.want, "EPOCH", epoch); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s %s:\ngot  %d %s\nwant %s", c.verb, c.path, status, text, want)
		}
	}
	if got := n.bus.offsets("chat:a"); fmt.Sprint(got) != "[1 2 3 4]" {
		t.Errorf("the bus has %v", got)
	}
}

func TestHTTPErrorsAreNamedAndNumbered(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		withHTTPKeys(c)
		c.OpenNamespaces, c.API.MaxEventBytes = false, 1000
		c.Namespaces["chat"], c.Namespaces["rated"] = namespace.Default(), namespace.Namespace{PublishPerSecond: 1, PublishBurst: 1}
		c.Now = func() time.Time { return time.Unix(1_700_000_000, 0) }
	})
	w, r, a := "Authorization: Bearer "+writerKey, "Authorization: Bearer "+readerKey, "Authorization: bearer "+adminKey
	if status, _, text := n.curl("POST", "/v1/publish", `{"channel":"rated:a","data":1}`, w); status != 200 {
		t.Fatal(text)
	}
	long := strings.Repeat("x", 1001)
	for _, c := range []struct {
		verb, path, body, key string
		status                int
		want                  string
	}{
		{"POST", "/v1/publish", `{"channel":"chat:a","data":1}`, "", 401, `{"code":"unauthenticated","message":"an API key is needed`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":1}`, "Authorization: Bearer nobody", 401, `"message":"the API key is not known"}`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":1}`, r, 403, `{"code":"permission_denied","message":"the API key does not have the right \"publish\""}`},
		{"GET", "/v1/history?channel=chat:a", ``, w, 403, `right \"read\"`},
		{"POST", "/v1/admin/ListNodes", ``, w, 403, `right \"admin\"`},
		{"POST", "/v1/admin/ListNodes", `{"x":1}`, a, 400, `unknown field`},
		{"POST", "/v1/admin/WatchOperation", `{}`, a, 404, `no such path`},
		{"POST", "/v1/admin/GetSettings", `{}`, a, 409, `{"code":"failed_precondition"`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":{}`, w, 400, `{"code":"invalid_argument","message":"not JSON at byte 29`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":nil}`, w, 400, `not JSON at byte 27`},
		{"POST", "/v1/publish", ``, w, 400, `not JSON at byte 0`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":1,"idempotency_key":"k"}`, w, 400, `idempotency_key: unknown field`},
		{"POST", "/v1/publish", `{"data":1}`, w, 400, `channel: must not be empty`},
		{"POST", "/v1/publish", `{"channel":"nowhere:a","data":1}`, w, 404, `{"code":"not_found","message":"channel: unknown namespace nowhere"}`},
		{"POST", "/v1/publish", `{"channel":"plain","data":1}`, w, 404, `"message":"channel: no colon, and there is no namespace \"default\""`},
		{"POST", "/v1/publish", `{"channel":"chat:a","data":"` + long + `"}`, w, 413, `data: 1003 bytes, at most 1000 are allowed`},
		{"POST", "/v1/publish", `"` + strings.Repeat("x", maxBody) + `"`, w, 413, `body: `},
		{"POST", "/v1/publish", `{"channel":"rated:a","data":1}`, w, 429, `{"code":"resource_exhausted","message":"namespace rated takes 1 events a second; nothing was stored","retry_after_ms":1000}`},
		{"POST", "/v1/publish/batch", `{"publications":[` + strings.Repeat(`{"channel":"chat:a","data":1},`, 1000) + `{}]}`, w, 400, `publications: at most 1000`},
		{"POST", "/v1/publish/batch", `{"publications":[]}`, w, 400, `"message":"publications: at least one must be given"}`},
		{"POST", "/v1/broadcast", `{"channels":[],"data":1}`, w, 400, `"message":"channels: at least one must be given"}`},
		{"POST", "/v1/broadcast", `{"channels":[` + strings.Repeat(`"a",`, 1000) + `"a"],"data":1}`, w, 400, `channels: at most 1000`},
		{"GET", "/v1/publish", ``, w, 405, `use POST`},
		{"POST", "/v1/history", ``, r, 405, `use GET`},
		{"GET", "/v1/history", ``, r, 400, `channel: must not be empty`},
		{"GET", "/v1/history?channel=chat:a&limit=1001", ``, r, 400, `limit: at most 1000`},
		{"GET", "/v1/history?channel=chat:a&limit=x", ``, r, 400, `limit: `},
		{"GET", "/v1/history?channel=chat:a&offset=-1", ``, r, 400, `offset: `},
		{"GET", "/v1/history?channel=chat:a&channel=chat:b", ``, r, 400, `channel: given 2 times`},
		{"GET", "/v1/history?channel=chat:a&before=7", ``, r, 400, `before: unknown parameter`},
		{"GET", "/v1/history?channel=%zz", ``, r, 400, `query: `},
		{"GET", "/v1/history?channel=chat:a&epoch=zz", ``, r, 409, `{"code":"failed_precondition","message":"epoch: `},
		{"GET", "/nothing", ``, r, 404, `no such path`},
	} {
		status, header, text := n.curl(c.verb, c.path, c.body, c.key)
		if status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s %.60s:\ngot  %d %s\nwant %d %s", c.verb, c.path, c.body, status, text, c.status, c.want)
		}
		if got := header.Get("Retry-After"); (got != "") != (status == 429 || status == 503) {
			t.Errorf("%d has Retry-After %q", status, got)
		}
	}
	if len(n.stored("chat:a")) != 0 {
		t.Error("something was stored")
	}
	if status, _, text := n.curl("POST", "/v1/admin/ListNodes", ``, a); status != 200 || !strings.HasPrefix(text, `{"nodes":[{"id":"r1","role":"router"`) {
		t.Errorf("%d %s", status, text)
	}
	n.store.away(true)
	if status, header, text := n.curl("POST", "/v1/publish", `{"channel":"chat:a","data":1}`, w); status != 503 || header.Get("Retry-After") != "1" || !strings.Contains(text, `"retry_after_ms":1000`) {
		t.Errorf("%d %v %s", status, header, text)
	}
}

// A page in a browser on the same machine reaches a router without keys, unless it
// is kept out.
func TestHTTPDoesNotServePagesOfOthers(t *testing.T) {
	n := start(t, nil, withHTTP)
	event := `{"channel":"chat:a","data":1}`
	for _, header := range []string{"Sec-Fetch-Site: cross-site", "Origin: https://elsewhere.example", "Host: rebound.example:8380"} {
		if status, _, text := n.curl("POST", "/v1/publish", event, header); status != 403 || !strings.Contains(text, `"permission_denied"`) {
			t.Errorf("%s: %d %s", header, status, text)
		}
	}
	for _, header := range []string{"Host: localhost:1", "Host: [::1]:1", "Host: 127.0.0.1", "Sec-Fetch-Site: none"} {
		if status, _, text := n.curl("POST", "/v1/publish", event, header); status != 200 {
			t.Errorf("%s: %d %s", header, status, text)
		}
	}
}

// raw opens a connection and sends the beginning of a request.
func (n *node) raw(text string) net.Conn {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.HTTPAddr())
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		n.t.Fatal(err)
	}
	return conn
}

func answer(t *testing.T, conn net.Conn) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestHTTPBodyThatDoesNotComeIsNotWaitedForForLong(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		withHTTPKeys(c)
		c.API.CallDeadline = 300 * time.Millisecond
	})
	key := "Authorization: Bearer " + writerKey + "\n"
	conn := n.raw("POST /v1/publish HTTP/1.1\nHost: x\n" + key + "Content-Length: 100\n\n{\"channel\":")
	if resp, text := answer(t, conn); resp.StatusCode != 408 || !resp.Close || !strings.Contains(text, "did not arrive in time") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	// A stranger is told at once, and does not keep the connection either.
	conn = n.raw("POST /v1/publish HTTP/1.1\nHost: x\nContent-Length: 100\n\n{")
	if resp, _ := answer(t, conn); resp.StatusCode != 401 {
		t.Errorf("%d", resp.StatusCode)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection lives: %v", err)
	}
}

const (
	maxBody   = 4 << 20  // bytes of one body
	maxBodies = 64 << 20 // of all together
)

func TestHTTPBodiesHaveABudgetTogether(t *testing.T) {
	n := start(t, nil, withHTTP)
	var conns []net.Conn
	for range maxBodies / maxBody {
		conns = append(conns, n.raw("POST /v1/publish HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n"))
	}
	eventually(t, "all bodies are waited for", func() bool { return n.counter("spillway_router_http_bytes") == maxBodies })
	if status, header, text := n.curl("POST", "/v1/publish", `{"channel":"chat:a","data":1}`); status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, text)
	}
	for _, conn := range conns {
		conn.Close()
	}
	eventually(t, "nothing is held", func() bool { return n.counter("spillway_router_http_bytes") == 0 })
	if status, _, text := n.curl("POST", "/v1/publish", `{"channel":"chat:a","data":1}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
}

// What a client that goes away has sent is taken back if the store has not got it.
func TestHTTPClientThatGoesAwayWithdrawsItsPublish(t *testing.T) {
	registry := prometheus.NewRegistry()
	n := start(t, nil, func(c *Config) { withHTTP(c); c.Registry = registry })
	entered, free := make(chan struct{}, 1), make(chan struct{})
	n.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-free
		return next()
	})
	request := func(data string) net.Conn {
		body := `{"channel":"chat:a","data":` + data + `}`
		return n.raw(fmt.Sprintf("POST /v1/publish HTTP/1.1\nHost: localhost\nContent-Length: %d\n\n%s", len(body), body))
	}
	first := request("1")
	<-entered
	second := request("2")
	eventually(t, "both wait", func() bool { return waiting(n.Router) == 2 })
	second.Close()
	eventually(t, "the second is given up", func() bool { return value(t, registry, "spillway_router_http_requests_total", "gone") == 1 })
	close(free)
	if resp, text := answer(t, first); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	n.publish1("chat:a", "3", "")
	if got := n.bus.offsets("chat:a"); fmt.Sprint(got) != "[1 2]" || len(n.stored("chat:a")) != 2 {
		t.Errorf("the bus has %v", got)
	}
}

// value of a counter with one label.
func value(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && m.Label[0].GetValue() == label {
				return m.Counter.GetValue()
			}
		}
	}
	return -1
}
