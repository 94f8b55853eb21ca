package torture

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// rawWatcher is a bare WebSocket. It notes what is on the wire: an SDK would drop a
// double and announce a hole by itself. It comes back with its positions after every
// end of a connection, and ends some itself.
type rawWatcher struct {
	tr      *trial
	name    string
	rng     *rand.Rand
	mangle  func(line []byte) [][]byte // a broken edge; nil: none
	streams map[string]*stream

	// of the connection
	conn       net.Conn
	rd         *bufio.Reader
	id         uint32
	subscribed map[string]bool
}

var errLeft = errors.New("left by itself")

const (
	handshakeTime = 10 * time.Second
	rawWait       = 50 * time.Millisecond // for what comes, between looks at other things
)

func (w *rawWatcher) run(ctx context.Context) {
	w.streams = make(map[string]*stream)
	for {
		err := w.session(ctx)
		if w.tr.ended() {
			return
		}
		for _, s := range w.streams {
			if _, known := s.position(); known {
				s.step(w, ledger.Step{Kind: ledger.Away, Text: err.Error()})
			}
		}
		pause := time.NewTimer(100*time.Millisecond + time.Duration(w.rng.Int64N(int64(300*time.Millisecond))))
		select {
		case <-pause.C:
		case <-w.tr.over:
		}
		pause.Stop()
	}
}

// session is one connection, from handshake to end.
func (w *rawWatcher) session(ctx context.Context) error {
	dial, cancel := context.WithTimeout(context.Background(), handshakeTime)
	defer cancel()
	conn, rd, _, err := ws.Dialer{Protocols: []string{wire.ProtocolJSON}}.Dial(dial, w.tr.urls(w.rng)[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if rd == nil {
		rd = bufio.NewReader(conn)
	}
	w.conn, w.rd, w.id, w.subscribed = conn, rd, 0, make(map[string]bool)
	if err := w.send(&clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Connect{Connect: &clientv1.Connect{
		Client: w.name, Subscriptions: w.asks(),
	}}}); err != nil {
		return err
	}
	leave := w.tr.rec.now() + sessionFor/2 + time.Duration(w.rng.Int64N(int64(sessionFor)))
	for {
		if w.tr.ended() || ctx.Err() == nil && w.tr.rec.now() > leave {
			return errLeft
		}
		if err := w.message(); err != nil {
			return err
		}
		if asks := w.asks(); len(asks) > 0 {
			if err := w.send(&clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Subscribe{Subscribe: &clientv1.Subscribe{Subscriptions: asks}}}); err != nil {
				return err
			}
		}
	}
}

// asks are for channels that this connection has not asked for.
func (w *rawWatcher) asks() (asks []*clientv1.SubscriptionRequest) {
	for _, channel := range w.tr.channels.all() {
		if w.subscribed[channel] {
			continue
		}
		w.subscribed[channel] = true
		s := w.streams[channel]
		if s == nil {
			s = w.tr.rec.stream(w.name, channel)
			w.streams[channel] = s
		}
		r := &clientv1.SubscriptionRequest{Channel: channel}
		if at, known := s.take(w); known {
			r.Epoch, r.Offset = at.Epoch, &at.Offset
		}
		asks = append(asks, r)
	}
	return asks
}

func (w *rawWatcher) send(f *clientv1.ClientFrame) error {
	w.id++
	f.Id = w.id
	if err := w.conn.SetWriteDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	return wsutil.WriteClientText(w.conn, wire.AppendClient(nil, f))
}

// message serves one message of the server, if one comes soon.
func (w *rawWatcher) message() error {
	if w.rd.Buffered() == 0 {
		if err := w.conn.SetReadDeadline(time.Now().Add(rawWait)); err != nil {
			return err
		}
		if _, err := w.rd.Peek(1); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				return nil
			}
			return err
		}
	}
	if err := w.conn.SetReadDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	text, op, err := wsutil.ReadServerData(struct {
		io.Reader
		io.Writer
	}{w.rd, w.conn})
	if err != nil {
		return err
	}
	if op != ws.OpText {
		return fmt.Errorf("a message of kind %d", op)
	}
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		lines := [][]byte{line}
		if w.mangle != nil {
			lines = w.mangle(line)
		}
		for _, l := range lines {
			if err := w.frame(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *rawWatcher) frame(line []byte) error {
	f, err := wire.DecodeServer(line)
	if err != nil {
		w.tr.t.Errorf("%s: %q: %v", w.name, line, err)
		return err
	}
	switch m := f.Frame.(type) {
	case *clientv1.ServerFrame_Connected:
		return w.verdicts(m.Connected.Subscriptions)
	case *clientv1.ServerFrame_Subscribed:
		return w.verdicts(m.Subscribed.Subscriptions)
	case *clientv1.ServerFrame_Event:
		e := m.Event
		s := w.streams[e.Channel]
		at, _ := s.position()
		s.step(w, ledger.Step{Kind: ledger.Received, At: ledger.Position{Epoch: at.Epoch, Offset: e.Offset}, Value: valueOf(e.Data)})
	case *clientv1.ServerFrame_Gap:
		g := m.Gap
		s := w.streams[g.Channel]
		at, _ := s.position()
		s.step(w, ledger.Step{Kind: ledger.Lost, From: at, At: ledger.Position{Epoch: g.Epoch, Offset: g.Offset}, Text: g.Reason})
	case *clientv1.ServerFrame_Unsubscribed:
		return fmt.Errorf("%s was ended: %v", m.Unsubscribed.Channel, m.Unsubscribed.Error)
	case *clientv1.ServerFrame_Error:
		return fmt.Errorf("error: %v", m.Error)
	case *clientv1.ServerFrame_Busy:
		return errors.New("busy")
	case *clientv1.ServerFrame_Reconnect:
		return errors.New("told to go elsewhere")
	}
	return nil
}

func (w *rawWatcher) verdicts(entries []*clientv1.SubscriptionEntry) error {
	for _, e := range entries {
		s := w.streams[e.Channel]
		if s == nil {
			w.tr.t.Errorf("%s: a verdict on %q, which it did not ask for", w.name, e.Channel)
			continue
		}
		at, known := s.position()
		head := ledger.Position{Epoch: e.Epoch, Offset: e.Offset}
		text := fmt.Sprintf("head %v recovered %v", head, e.Recovered)
		switch {
		case e.Error != nil:
			return fmt.Errorf("%s was refused: %v", e.Channel, e.Error)
		case e.Pending:
			s.step(w, ledger.Step{Kind: ledger.Pending})
		case !known:
			s.step(w, ledger.Step{Kind: ledger.Joined, At: head, Text: text})
		case e.Recovered:
			s.step(w, ledger.Step{Kind: ledger.Joined, At: ledger.Position{Epoch: e.Epoch, Offset: at.Offset}, Text: text})
		default:
			s.step(w, ledger.Step{Kind: ledger.Lost, From: at, At: head, Text: "recovered=false"})
			s.step(w, ledger.Step{Kind: ledger.Joined, At: head, Text: text})
		}
	}
	return nil
}
