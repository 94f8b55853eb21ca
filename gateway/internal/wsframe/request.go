package wsframe

import (
	"bytes"
	"iter"
	"strings"
)

// Bounds of a request head.
const (
	// MaxHandshakeBytes bounds the whole head, blank line included.
	MaxHandshakeBytes = 16 << 10
	// MaxFields bounds its header lines; browsers send about twenty.
	MaxFields = 100
)

// Request is the head of an HTTP/1.1 request without a body. Its strings are cut
// from one copy of the head: keeping one keeps all.
type Request struct {
	Method string
	Path   string // as sent, percent-encoding untouched; "*" for OPTIONS *
	Query  string // behind the '?', without it
	Host   string // of the target if it has one, else of the Host field
	Minor  int    // 1 for HTTP/1.1, 0 for HTTP/1.0
	fields []field
}

type field struct{ name, value string }

// HeadEnd finds the end of the first request head in b, of which the first seen
// bytes were looked at before (0 at first). It returns the size of the head,
// blank line included, or 0 if it has not come whole. What can be no head is an
// *HTTPError at once, not when a time is over: a line not ended by CR LF, a first
// byte that begins no method, more than MaxHandshakeBytes.
func HeadEnd(b []byte, seen int) (int, error) {
	if len(b) > 0 && !isToken(b[0]) {
		return 0, &HTTPError{400, "not an HTTP request"} // TLS on a plain port, mostly
	}
	head := b[:min(len(b), MaxHandshakeBytes)]
	for at := max(seen-3, 0); at < len(head); {
		lf := bytes.IndexByte(head[at:], '\n')
		if lf < 0 {
			break
		}
		at += lf
		if at == 0 || head[at-1] != '\r' {
			return 0, &HTTPError{400, "a line ends without CR"}
		}
		if at >= 3 && head[at-2] == '\n' {
			return at + 1, nil
		}
		at++
	}
	if len(b) >= MaxHandshakeBytes {
		return 0, &HTTPError{431, "request head is too large"}
	}
	return 0, nil
}

// ParseRequest reads a whole head, as HeadEnd measured it. It refuses, with an
// *HTTPError, all that two readers could understand differently (RFC 9112 11.2):
// folded lines, spaces before a colon, control bytes, a second Host,
// Content-Length or WebSocket key, Transfer-Encoding; and every body.
// Fields that are not of the handshake are kept as they are.
func ParseRequest(head []byte) (*Request, error) {
	if len(head) > MaxHandshakeBytes {
		return nil, &HTTPError{431, "request head is too large"}
	}
	s, ok := strings.CutSuffix(string(head), "\r\n\r\n")
	if !ok {
		return nil, &HTTPError{400, "request head is not whole"}
	}
	line, s, more := strings.Cut(s, "\r\n")
	r := new(Request)
	if err := r.requestLine(line); err != nil {
		return nil, err
	}
	r.fields = make([]field, 0, min(strings.Count(s, "\n")+1, MaxFields))
	for more {
		line, s, more = strings.Cut(s, "\r\n")
		if err := r.field(line); err != nil {
			return nil, err
		}
	}
	if err := r.checkFields(); err != nil {
		return nil, err
	}
	return r, nil
}

// requestLine reads method SP request-target SP HTTP-version (RFC 9112 3).
func (r *Request) requestLine(line string) error {
	method, rest, _ := strings.Cut(line, " ")
	target, version, ok := strings.Cut(rest, " ")
	if !ok || !allToken(method) {
		return &HTTPError{400, "bad request line"}
	}
	r.Method = method
	switch version {
	case "HTTP/1.1":
		r.Minor = 1
	case "HTTP/1.0":
	default:
		if !strings.HasPrefix(version, "HTTP/") {
			return &HTTPError{400, "bad request line"}
		}
		return &HTTPError{505, "HTTP/1.1 only"}
	}
	return r.target(target)
}

// target reads origin-form, absolute-form, and * for OPTIONS (RFC 9112 3.2).
func (r *Request) target(t string) error {
	for i := range len(t) {
		if t[i] <= ' ' || t[i] >= 0x7f || t[i] == '#' {
			return &HTTPError{400, "bad request target"}
		}
	}
	if t == "*" && r.Method == "OPTIONS" {
		r.Path = t
		return nil
	}
	if t != "" && t[0] != '/' {
		scheme, rest, ok := strings.Cut(t, "://")
		if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
			return &HTTPError{400, "bad request target"}
		}
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		r.Host, t = rest[:end], rest[end:]
		if !validHost(r.Host) || r.Host == "" {
			return &HTTPError{400, "bad request target"}
		}
		if t == "" || t[0] == '?' {
			t = "/" + t
		}
	}
	if t == "" {
		return &HTTPError{400, "bad request target"}
	}
	r.Path, r.Query, _ = strings.Cut(t, "?")
	return nil
}

// field reads field-name ":" OWS field-value OWS (RFC 9112 5).
func (r *Request) field(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !allToken(name) { // catches folded lines and a space before the colon
		return &HTTPError{400, "bad header line"}
	}
	if len(r.fields) == MaxFields {
		return &HTTPError{431, "too many header lines"}
	}
	value = strings.Trim(value, " \t")
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return &HTTPError{400, "control byte in a header line"}
		}
	}
	r.fields = append(r.fields, field{name, value})
	return nil
}

// single fields may come once: of two values proxies choose one, we the other.
var single = [...]string{
	"Host", "Content-Length", "Origin", "Sec-WebSocket-Key", "Sec-WebSocket-Version",
}

func (r *Request) checkFields() error {
	var count [len(single)]int
	for _, f := range r.fields {
		for i, name := range single {
			if same(f.name, name) {
				if count[i]++; count[i] > 1 {
					return &HTTPError{400, "two " + name + " header lines"}
				}
			}
		}
		switch {
		case same(f.name, "Transfer-Encoding"):
			return &HTTPError{400, "a request here has no body"}
		case same(f.name, "Content-Length") && f.value != "0":
			return &HTTPError{400, "a request here has no body"}
		}
	}
	if count[0] == 0 && r.Minor > 0 { // RFC 9112 3.2
		return &HTTPError{400, "no Host header line"}
	}
	host := r.Get("Host")
	if !validHost(host) {
		return &HTTPError{400, "bad Host header line"}
	}
	if r.Host == "" {
		r.Host = host
	}
	return nil
}

// Get returns the value of the first field of that name, in any case, or "".
func (r *Request) Get(name string) string {
	for _, f := range r.fields {
		if same(f.name, name) {
			return f.value
		}
	}
	return ""
}

// Values yields the value of each field of that name, in order.
func (r *Request) Values(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, f := range r.fields {
			if same(f.name, name) && !yield(f.value) {
				return
			}
		}
	}
}

// List yields the elements of a comma-separated list, over all fields of that
// name (RFC 9110 5.6.1); empty ones are skipped.
func (r *Request) List(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for value := range r.Values(name) {
			for more := true; more; {
				var element string
				element, value, more = strings.Cut(value, ",")
				if element = strings.Trim(element, " \t"); element != "" && !yield(element) {
					return
				}
			}
		}
	}
}

// has reports whether a list names an element, in any case.
func (r *Request) has(name, element string) bool {
	for e := range r.List(name) {
		if same(e, element) {
			return true
		}
	}
	return false
}

// same compares in any case. The lengths first: most names differ in them, and a
// letter that only Unicode folds to ASCII is longer.
func same(a, b string) bool { return len(a) == len(b) && strings.EqualFold(a, b) }

// isToken says which bytes a token has (RFC 9110 5.6.2).
func isToken(c byte) bool { return tokens[c] }

var tokens = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		set[c] = true
	}
	return set
}()

func allToken(s string) bool {
	for i := range len(s) {
		if !isToken(s[i]) {
			return false
		}
	}
	return s != ""
}

// validHost accepts uri-host [":" port] by its bytes alone (RFC 3986 3.2.2).
func validHost(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !isToken(c) && strings.IndexByte("[]:();=,", c) < 0 || c == '^' || c == '`' || c == '|' || c == '#' {
			return false
		}
	}
	return true
}
