package loadgen

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/cmd/drill/internal/floor"
	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// server is a scripted edge: script runs for each connection, after its request.
type server struct {
	listener net.Listener
	script   func(*peer)
	wg       sync.WaitGroup

	mu    sync.Mutex
	peers []*peer
}

// peer is one connection of a client, seen from the server.
type peer struct {
	net.Conn
	number  int // of the connection, from 0
	request []byte
	frames  *bufio.Reader
}

func serve(t *testing.T, script func(*peer)) *server {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{listener: ln, script: script}
	s.wg.Go(s.accept) // ends when the listener closes; the cleanup waits
	t.Cleanup(func() {
		_ = ln.Close()
		s.mu.Lock()
		for _, p := range s.peers {
			_ = p.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		p := &peer{Conn: c, number: len(s.peers), frames: bufio.NewReader(c)}
		s.peers = append(s.peers, p)
		s.mu.Unlock()
		s.wg.Go(func() { // ends with its connection
			for {
				text, err := p.frames.ReadBytes('\n')
				if err != nil {
					return
				}
				if p.request = append(p.request, text...); string(text) == "\r\n" {
					break
				}
			}
			s.script(p)
			_, _ = io.Copy(io.Discard, p.frames)
		})
	}
}

func (s *server) url() string { return "ws://" + s.listener.Addr().String() + "/v1/ws" }

// greet accepts, reads the connect frame and answers it with entries.
func (p *peer) greet(entries ...*clientv1.SubscriptionEntry) *clientv1.Connect {
	_, _ = p.Write(floor.AcceptAnswer(p.request))
	f := p.command()
	if f.GetConnect() == nil {
		return &clientv1.Connect{}
	}
	if entries == nil {
		for _, s := range f.GetConnect().Subscriptions {
			entries = append(entries, &clientv1.SubscriptionEntry{Channel: s.Channel, Epoch: "e1"})
		}
	}
	p.say(connectedFrame(f.Id, 30_000, 10_000, entries))
	return f.GetConnect()
}

func connectedFrame(id, ping, pong uint32, entries []*clientv1.SubscriptionEntry) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
		Session: "s", Node: "scripted", PingIntervalMs: ping, PongTimeoutMs: pong, Subscriptions: entries,
	}}}
}

// command reads the next command; an empty one if the client has gone.
func (p *peer) command() *clientv1.ClientFrame {
	for {
		h, err := ws.ReadHeader(p.frames)
		if err != nil || h.Length > wire.MaxClientFrameBytes {
			return &clientv1.ClientFrame{}
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(p.frames, payload); err != nil {
			return &clientv1.ClientFrame{}
		}
		if h.OpCode != ws.OpText {
			continue
		}
		ws.Cipher(payload, h.Mask, 0)
		out, problem := wire.DecodeClient(payload)
		if problem != nil {
			return &clientv1.ClientFrame{}
		}
		return out
	}
}

func (p *peer) say(frames ...*clientv1.ServerFrame) {
	var b []byte
	for i, f := range frames {
		if i > 0 {
			b = append(b, '\n')
		}
		b = wire.AppendServer(b, f)
	}
	_, _ = p.Write(floor.AppendFrame(nil, b))
}

// events writes events with these offsets, seq equal to the offset.
func (p *peer) events(channel string, offsets ...uint64) {
	for _, o := range offsets {
		_, _ = p.Write(floor.AppendFrame(nil, eventText(channel, o, o)))
	}
}

func eventText(channel string, offset, seq uint64) []byte {
	return wire.AppendEvent(nil, channel, &gatewayv1.BusEvent{
		Offset: offset, TimeMs: 1, Data: payload.Append(nil, channel, seq, wallNow(), 128),
	})
}

// atEnd waits until the client has closed.
func (p *peer) atEnd() error {
	_, err := p.frames.ReadByte()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
