package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/proto/wire"
)

var (
	errBigHandshake = fmt.Errorf("the answer to the handshake has over %d bytes", wire.MaxHandshakeBytes)
	errOddProtocol  = errors.New("the server selected a subprotocol that is none")
)

// limitedConn bounds what a handshake reads: ws.Dialer takes header lines of any
// length. Bytes that come behind the answer may be read with it.
type limitedConn struct {
	net.Conn
	left int // < 0: no limit any more
}

func (c *limitedConn) Read(p []byte) (int, error) {
	switch {
	case c.left < 0:
		return c.Conn.Read(p)
	case c.left == 0:
		return 0, errBigHandshake
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// handshake dials and upgrades, until ctx ends, with a ticket to offer if there is
// one. Exactly one of socket and refusal is returned.
func (s *settings) handshake(ctx context.Context, url, ticket string) (net.Conn, *bufio.Reader, *refusal) {
	var limited *limitedConn
	r := &refusal{}
	d := ws.Dialer{
		Protocols: offers(ticket),
		Header:    ws.HandshakeHeaderHTTP(s.header),
		TLSConfig: s.tls,
		NetDial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := s.dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			limited = &limitedConn{Conn: nc, left: 4 * wire.MaxHandshakeBytes} // TLS included
			return limited, nil
		},
		OnStatusError: func(status int, _ []byte, resp io.Reader) {
			r.read(resp)
			r.malformed = status == http.StatusBadRequest || status == http.StatusRequestHeaderFieldsTooLarge
		},
	}
	socket, br, selected, err := d.Dial(ctx, url)
	if err == nil && selected.Protocol != "" && selected.Protocol != wire.ProtocolJSON {
		socket.Close()
		err = errOddProtocol
	}
	if err != nil {
		r.err = fmt.Errorf("connect to %s: %w", url, err)
		return nil, nil, r
	}
	socket.SetDeadline(time.Time{})
	limited.left = -1
	if br == nil {
		br = bufio.NewReader(socket)
	}
	return socket, br, nil
}

// read takes from a refusal when to come back: our own JSON body, else Retry-After.
func (r *refusal) read(text io.Reader) {
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(text, wire.MaxHandshakeBytes)), nil)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	var body struct {
		RetryAfterMS *uint32 `json:"retry_after_ms"`
	}
	content, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return
	}
	if json.Unmarshal(content, &body) == nil && body.RetryAfterMS != nil {
		r.ours, r.waitIsTold, r.wait = true, true, millis(*body.RetryAfterMS)
		return
	}
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 32); err == nil {
		r.waitIsTold, r.wait = true, time.Duration(seconds)*time.Second
	}
}
