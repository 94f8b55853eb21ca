package wsframe

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gobwas/ws"
)

// browser is what Chromium sends.
const browser = "GET /app/v1/ws?x=1 HTTP/1.1\r\n" +
	"Host: edge.example.com:8400\r\n" +
	"Connection: Upgrade\r\n" +
	"Pragma: no-cache\r\n" +
	"Cache-Control: no-cache\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n" +
	"Upgrade: websocket\r\n" +
	"Origin: https://example.com\r\n" +
	"Sec-WebSocket-Version: 13\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: en-US,en;q=0.9\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
	"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n" +
	"Sec-WebSocket-Protocol: spillway.v1.json, spillway.ticket.QUJD\r\n" +
	"\r\n"

func mustParse(t testing.TB, head string) *Request {
	t.Helper()
	n, err := HeadEnd([]byte(head), 0)
	if err != nil || n != len(head) {
		t.Fatalf("HeadEnd = %d, %v; want %d", n, err, len(head))
	}
	r, err := ParseRequest([]byte(head))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestABrowsersHandshakeIsUnderstood(t *testing.T) {
	r := mustParse(t, browser)
	if r.Method != "GET" || r.Path != "/app/v1/ws" || r.Query != "x=1" || r.Host != "edge.example.com:8400" || r.Minor != 1 {
		t.Errorf("%+v", r)
	}
	if got := r.Get("origin"); got != "https://example.com" {
		t.Errorf("Origin %q", got)
	}
	if got := slices.Collect(r.Protocols()); !slices.Equal(got, []string{"spillway.v1.json", "spillway.ticket.QUJD"}) {
		t.Errorf("Protocols %q", got)
	}
	if err := r.CheckUpgrade(); err != nil || !r.Upgrades() {
		t.Fatal(err)
	}
	// The key and its answer are RFC 6455's own (1.3).
	want := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: spillway.v1.json\r\n\r\n"
	if got := string(AppendAccept(nil, r, "spillway.v1.json")); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := string(AppendAccept(nil, r, "")); strings.Contains(got, "Protocol:") {
		t.Errorf("selected a protocol:\n%s", got)
	}
}

// edit returns browser with one line replaced, or removed, or lines added.
func edit(old, with string) string { return strings.Replace(browser, old, with, 1) }

func status(err error) int {
	var e *HTTPError
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func TestBadRequestsAreRefused(t *testing.T) {
	const host = "Host: edge.example.com:8400\r\n"
	for _, c := range []struct {
		name, head string
		want       int
	}{
		{"TLS", "\x16\x03\x01\x02\x00", 400},
		{"empty line first", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"LF only", "GET / HTTP/1.1\nHost: a\n\n", 400},
		{"LF inside", edit("Pragma: no-cache\r\n", "Pragma: a\nEvil: b\r\n"), 400},
		{"CR inside", edit("Pragma: no-cache", "Pragma: a\rEvil: b"), 400},
		{"NUL inside", edit("Pragma: no-cache", "Pragma: a\x00"), 400},
		{"DEL inside", edit("Pragma: no-cache", "Pragma: a\x7f"), 400},
		{"folded line", edit("Pragma: no-cache", "Pragma: a\r\n b"), 400},
		{"folded line by tab", edit("Pragma: no-cache", "Pragma: a\r\n\tb: c"), 400},
		{"space before the colon", edit("Pragma:", "Pragma :"), 400},
		{"no colon", edit("Pragma: no-cache", "Pragma"), 400},
		{"no name", edit("Pragma:", ":"), 400},
		{"bad name", edit("Pragma:", "Pra(gma:"), 400},
		{"bad method", edit("GET ", "G(T "), 400},
		{"no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"space at the end", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 505},
		{"relative target", "GET v1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"star to GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"fragment in target", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"raw UTF-8 target", "GET /é HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"authority-form", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"absolute-form without host", "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"absolute-form with user", "GET http://u@h/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"HTTP/0.9", "GET /\r\nHost: a\r\n\r\n", 400},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\n", 505},
		{"lower-case http", "GET / http/1.1\r\nHost: a\r\n\r\n", 400},
		{"no Host", edit(host, ""), 400},
		{"two Hosts", edit(host, host+host), 400},
		{"Host with a slash", edit(host, "Host: a/b\r\n"), 400},
		{"Host with a space", edit(host, "Host: a b\r\n"), 400},
		{"Host with user", edit(host, "Host: u@a\r\n"), 400},
		{"two keys", edit(host, host+"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 400},
		{"two versions", edit(host, host+"Sec-WebSocket-Version: 8\r\n"), 400},
		{"two Origins", edit(host, host+"Origin: https://evil.example\r\n"), 400},
		{"body", edit(host, host+"Content-Length: 3\r\n"), 400},
		{"negative length", edit(host, host+"Content-Length: -0\r\n"), 400},
		{"two lengths", edit(host, host+"Content-Length: 0\r\nContent-Length: 0\r\n"), 400},
		{"chunked", edit(host, host+"Transfer-Encoding: chunked\r\n"), 400},
		{"chunked in disguise", edit(host, host+"transfer-encoding: identity\r\n"), 400},
		{"too many lines", edit(host, host+strings.Repeat("A: b\r\n", MaxFields)), 431},
		{"too large", edit(host, host+"A: "+strings.Repeat("b", MaxHandshakeBytes)+"\r\n"), 431},
		{"endless line", "GET /" + strings.Repeat("a", MaxHandshakeBytes), 431},

		{"POST", edit("GET", "POST"), 405},
		{"HTTP/1.0", edit("HTTP/1.1", "HTTP/1.0"), 505},
		{"no Upgrade", edit("Upgrade: websocket\r\n", ""), 426},
		{"h2c", edit("Upgrade: websocket", "Upgrade: h2c"), 426},
		{"no Connection", edit("Connection: Upgrade\r\n", ""), 426},
		{"version 8", edit("Version: 13", "Version: 8"), 426},
		{"no key", edit("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), 400},
		{"short key", edit("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), 400},
		{"key not base64", edit("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZ!=="), 400},
		{"key of 17 bytes", edit("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQA="), 400},
		{"protocol with a space", edit("spillway.ticket.QUJD", "spillway ticket"), 400},
	} {
		err := checkHandshake([]byte(c.head))
		if got := status(err); got != c.want {
			t.Errorf("%s: %v, want status %d", c.name, err, c.want)
		}
	}
}

func checkHandshake(b []byte) error {
	n, err := HeadEnd(b, 0)
	if err != nil {
		return err
	}
	r, err := ParseRequest(b[:n])
	if err != nil {
		return err
	}
	return r.CheckUpgrade()
}

func TestUnusualRequestsAreUnderstood(t *testing.T) {
	for _, c := range []struct{ name, head, path, query, host string }{
		{"plain GET", "GET /v1/connect HTTP/1.1\r\nHost: a\r\n\r\n", "/v1/connect", "", "a"},
		{"OPTIONS", "OPTIONS /v1/connect?a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "/v1/connect", "a?b", "a"},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "*", "", "a"},
		{"absolute-form", "GET HTTP://b:1/x?y HTTP/1.1\r\nHost: a\r\n\r\n", "/x", "y", "b:1"},
		{"absolute-form without path", "GET http://b?y HTTP/1.1\r\nHost: a\r\n\r\n", "/", "y", "b"},
		{"HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", "/", "", ""},
		{"IPv6 Host", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "/", "", "[::1]:80"},
		{"Latin-1 in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: \xe9\r\n\r\n", "/", "", "a"},
	} {
		r := mustParse(t, c.head)
		if r.Path != c.path || r.Query != c.query || r.Host != c.host {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	r := mustParse(t, "GET / HTTP/1.1\r\nhost:a\r\nCONNECTION: keep-alive, uPgRaDe\r\nx-forwarded-for: 1.1.1.1 ,, 2.2.2.2\r\nX-Forwarded-For: \t3.3.3.3 \r\nX: \r\n\r\n")
	if got := slices.Collect(r.List("X-Forwarded-For")); !slices.Equal(got, []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}) {
		t.Errorf("List = %q", got)
	}
	if !r.has("Connection", "upgrade") || r.Get("X") != "" || r.Get("Y") != "" {
		t.Errorf("%+v", r)
	}
	for range r.List("X-Forwarded-For") {
		break // an iterator may be left early
	}
}

func TestHeadEndDoesNotDependOnCuts(t *testing.T) {
	b := []byte(browser + "\x81\x80")
	for i := range b {
		first, err := HeadEnd(b[:i], 0)
		if err != nil || first != 0 && first != len(browser) {
			t.Fatalf("cut at %d: %d, %v", i, first, err)
		}
		if n, err := HeadEnd(b, min(i, len(browser)-1)); err != nil || n != len(browser) {
			t.Fatalf("after %d: %d, %v; want %d", i, n, err, len(browser))
		}
	}
	whole := []byte("GET / HTTP/1.1\r\nA: ")
	whole = append(whole, bytes.Repeat([]byte("b"), MaxHandshakeBytes-len(whole)-4)...)
	whole = append(whole, "\r\n\r\n"...)
	if n, err := HeadEnd(append(whole, 'x'), 0); n != MaxHandshakeBytes || err != nil {
		t.Fatalf("largest head: %d, %v", n, err)
	}
	if _, err := HeadEnd(append([]byte("X"), whole...), 0); status(err) != 431 {
		t.Fatalf("one byte more: %v", err)
	}
}

func TestResponsesAreHTTP(t *testing.T) {
	for _, c := range []struct {
		name   string
		raw    []byte
		status int
		body   string
		header string
	}{
		{"JSON", AppendResponse(nil, Response{200, []string{"Content-Type", "application/json"}, []byte("{}\n")}), 200, "{}\n", "Content-Type"},
		{"no content", AppendResponse(nil, Response{Status: 204}), 204, "", ""},
		{"busy", AppendResponse(nil, Response{503, []string{"Retry-After", "3"}, nil}), 503, "", "Retry-After"},
		{"version", AppendError(nil, &HTTPError{426, "version 13 only"}), 426, "version 13 only\n", "Sec-Websocket-Version"},
		{"method", AppendError(nil, &HTTPError{405, "no"}), 405, "no\n", "Allow"},
	} {
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.raw)), nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, c.raw)
		}
		body, err := io.ReadAll(r.Body)
		if r.StatusCode != c.status || string(body) != c.body || err != nil || !r.Close {
			t.Errorf("%s: %d %q %v", c.name, r.StatusCode, body, err)
		}
		if c.header != "" && r.Header.Get(c.header) == "" {
			t.Errorf("%s: no %s", c.name, c.header)
		}
	}
	defer func() {
		if recover() == nil {
			t.Fatal("a line break in a header value did not panic")
		}
	}()
	AppendResponse(nil, Response{Status: 200, Header: []string{"A", "b\r\nC: d"}})
}

// A client that is not ours gets in: gobwas/ws's dialer, over a pipe.
func TestAForeignClientGetsIn(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	go func() { // ends with the response; its end closes the pipe
		defer server.Close()
		var b []byte
		for chunk := make([]byte, 64); ; {
			n, err := server.Read(chunk)
			if err != nil {
				return
			}
			seen := len(b)
			b = append(b, chunk[:n]...)
			if end, err := HeadEnd(b, seen); err != nil {
				return
			} else if end > 0 {
				if r, err := ParseRequest(b[:end]); err == nil && r.CheckUpgrade() == nil {
					server.Write(AppendAccept(nil, r, "spillway.v1.json"))
				}
				return
			}
		}
	}()
	d := ws.Dialer{
		Protocols: []string{"spillway.v1.json"},
	}
	_, hs, err := d.Upgrade(client, mustURL(t, "ws://a.example/v1/ws"))
	if err != nil || hs.Protocol != "spillway.v1.json" {
		t.Fatalf("%+v, %v", hs, err)
	}
}

// FuzzRequest: what is accepted, net/http and gobwas/ws accept as well, and
// understand the same; what is refused has a status; cuts do not matter.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(browser), 7)
	f.Add([]byte("GET http://b?y HTTP/1.1\r\nHost: a\r\n\r\nrest"), 0)
	f.Add([]byte("OPTIONS * HTTP/1.0\r\nA:b\r\n\r\n"), 3)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n"), 3)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n"), 30)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		n, err := HeadEnd(b, 0)
		cut = min(max(cut, 0), len(b))
		if first, firstErr := HeadEnd(b[:cut], 0); firstErr == nil && first == 0 {
			if m, e := HeadEnd(b, cut); m != n || status(e) != status(err) {
				t.Fatalf("cut at %d: %d, %v; whole: %d, %v", cut, m, e, n, err)
			}
		}
		if err != nil || n == 0 {
			if err != nil && (status(err) < 400 || n != 0) {
				t.Fatalf("%d, %v", n, err)
			}
			return
		}
		r, err := ParseRequest(b[:n])
		if err != nil {
			if status(err) < 400 {
				t.Fatal(err)
			}
			return
		}
		compareWithNetHTTP(t, r, b[:n])
		if r.CheckUpgrade() == nil {
			answer := AppendAccept(nil, r, "")
			if _, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil); err != nil {
				t.Fatalf("%q: %v", answer, err)
			}
			rw := struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(b[:n]), io.Discard}
			if _, err := (ws.Upgrader{}).Upgrade(rw); err != nil {
				t.Fatalf("gobwas/ws refuses: %v", err)
			}
		}
	})
}

func compareWithNetHTTP(t *testing.T, r *Request, head []byte) {
	t.Helper()
	h, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		// It is stricter in two things that matter to nobody here.
		if strings.Contains(err.Error(), "parse ") || strings.Contains(err.Error(), "malformed Host") {
			return
		}
		t.Fatalf("net/http refuses what was accepted: %v", err)
	}
	if h.Method != r.Method || h.ContentLength > 0 || len(h.TransferEncoding) > 0 || h.Host != r.Host {
		t.Fatalf("net/http: %s %q length %d %v; here: %s %q", h.Method, h.Host, h.ContentLength, h.TransferEncoding, r.Method, r.Host)
	}
	if h.URL.RawQuery != r.Query {
		t.Fatalf("query %q, net/http %q", r.Query, h.URL.RawQuery)
	}
	for name, values := range h.Header {
		if name == "Cache-Control" && h.Header.Get("Pragma") != "" {
			continue // net/http makes one of "Pragma: no-cache"
		}
		if got := slices.Collect(r.Values(name)); !slices.Equal(got, values) {
			t.Fatalf("%s: %q, net/http %q", name, got, values)
		}
	}
}

func BenchmarkHandshake(b *testing.B) {
	head := []byte(browser)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]byte, 0, 512)
		for b.Loop() {
			n, _ := HeadEnd(head, 0)
			r, err := ParseRequest(head[:n])
			if err != nil || r.CheckUpgrade() != nil {
				b.Fatal(err)
			}
			dst = AppendAccept(dst[:0], r, "spillway.v1.json")
		}
	})
	b.Run("net/http.ReadRequest", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), 1024)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ws.Upgrader", func(b *testing.B) {
		b.ReportAllocs()
		u := ws.Upgrader{Protocol: func(p []byte) bool { return string(p) == "spillway.v1.json" }}
		rd := bytes.NewReader(head)
		rw := struct {
			io.Reader
			io.Writer
		}{rd, io.Discard}
		for b.Loop() {
			rd.Reset(head)
			if _, err := u.Upgrade(rw); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
