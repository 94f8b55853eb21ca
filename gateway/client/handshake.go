package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/gateway/client/machine"
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
func (s *settings) handshake(ctx context.Context, url, ticket string) (net.Conn, *bufio.Reader, *machine.Refusal) {
	var limited *limitedConn
	r := &machine.Refusal{}
	d := ws.Dialer{
		Protocols: machine.Offers(ticket),
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
		OnStatusError: func(_ int, _ []byte, resp io.Reader) { *r = machine.ReadRefusal(resp) },
	}
	socket, br, selected, err := d.Dial(ctx, url)
	if err == nil && selected.Protocol != "" && selected.Protocol != wire.ProtocolJSON {
		socket.Close()
		err = errOddProtocol
	}
	if err != nil {
		r.Err = fmt.Errorf("connect to %s: %w", url, err)
		return nil, nil, r
	}
	socket.SetDeadline(time.Time{})
	limited.left = -1
	if br == nil {
		br = bufio.NewReader(socket)
	}
	return socket, br, nil
}
