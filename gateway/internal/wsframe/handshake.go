package wsframe

import (
	"crypto/sha1"
	"encoding/base64"
	"iter"
	"net/http"
	"strconv"
)

// keySize is that of a Sec-WebSocket-Key: 16 bytes in base64 (RFC 6455 4.1).
const keySize = 24

// CheckUpgrade says whether r is a good opening handshake (RFC 6455 4.2.1). Its
// error is an *HTTPError; with 426 AppendResponse tells the version that is
// spoken here (RFC 6455 4.4).
func (r *Request) CheckUpgrade() error {
	switch {
	case r.Method != "GET":
		return &HTTPError{405, "a WebSocket begins with GET"}
	case r.Minor < 1:
		return &HTTPError{505, "a WebSocket begins with HTTP/1.1"}
	case !r.has("Upgrade", "websocket"), !r.has("Connection", "upgrade"):
		return &HTTPError{426, "this is a WebSocket"}
	case r.Get("Sec-WebSocket-Version") != "13":
		return &HTTPError{426, "WebSocket version 13 only"}
	case !validKey(r.Get("Sec-WebSocket-Key")):
		return &HTTPError{400, "bad Sec-WebSocket-Key"}
	}
	for p := range r.Protocols() {
		if !allToken(p) { // RFC 6455 4.1, point 10 of the request
			return &HTTPError{400, "bad Sec-WebSocket-Protocol"}
		}
	}
	return nil
}

// Upgrades reports whether r asks for a WebSocket at all, well or badly.
func (r *Request) Upgrades() bool { return r.has("Upgrade", "websocket") }

// Protocols yields the subprotocols offered, the preferred first.
func (r *Request) Protocols() iter.Seq[string] { return r.List("Sec-WebSocket-Protocol") }

func validKey(key string) bool {
	if len(key) != keySize {
		return false
	}
	var raw [keySize]byte
	n, err := base64.StdEncoding.Decode(raw[:], []byte(key))
	return err == nil && n == 16
}

// AppendAccept appends the 101 response to r, which CheckUpgrade found good.
// protocol must be one of r.Protocols, or "" to select none (RFC 6455 4.2.2).
func AppendAccept(dst []byte, r *Request, protocol string) []byte {
	dst = append(dst, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	dst = appendAcceptKey(dst, r.Get("Sec-WebSocket-Key"))
	if protocol != "" {
		dst = append(dst, "\r\nSec-WebSocket-Protocol: "...)
		dst = append(dst, protocol...)
	}
	return append(dst, "\r\n\r\n"...)
}

// appendAcceptKey answers the key (RFC 6455 4.2.2, point 5.4).
func appendAcceptKey(dst []byte, key string) []byte {
	const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	var b [keySize + len(guid)]byte
	n := copy(b[:], key)
	n += copy(b[n:], guid)
	sum := sha1.Sum(b[:n])
	return base64.StdEncoding.AppendEncode(dst, sum[:])
}

// Response is a plain HTTP answer; the conn is closed after it.
type Response struct {
	Status int
	// Header holds name and value in turns. They must have no control bytes;
	// values that ParseRequest gave have none.
	Header []string
	Body   []byte // may be empty; its Content-Type is the caller's to say
}

// AppendResponse appends a whole response with Content-Length and Connection:
// close. A control byte in a header would let a second response in: it panics.
func AppendResponse(dst []byte, r Response) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(r.Status)...)
	dst = append(dst, "\r\nConnection: close\r\n"...)
	if r.Status == 426 {
		dst = append(dst, "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"...)
	}
	for i := 0; i+1 < len(r.Header); i += 2 {
		dst = appendHeaderLine(dst, r.Header[i], r.Header[i+1])
	}
	if r.Status == 204 || r.Status == 304 { // RFC 9110 8.6: no Content-Length
		return append(dst, "\r\n"...)
	}
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(r.Body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, r.Body...)
}

// AppendError appends the response to a request that was refused: its reason as
// text.
func AppendError(dst []byte, e *HTTPError) []byte {
	header := []string{"Content-Type", "text/plain; charset=utf-8", "Cache-Control", "no-store"}
	if e.Status == http.StatusMethodNotAllowed { // RFC 9110 15.5.6
		header = append(header, "Allow", "GET")
	}
	return AppendResponse(dst, Response{Status: e.Status, Header: header, Body: append([]byte(e.Reason), '\n')})
}

func appendHeaderLine(dst []byte, name, value string) []byte {
	if !allToken(name) {
		panic("wsframe: bad header name " + strconv.Quote(name))
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			panic("wsframe: control byte in the value of " + name)
		}
	}
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}
