package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-io/spillway/presence"
)

// Errors of Ask and Say.
var (
	// ErrNobody: nobody serves that name; the bus said so at once.
	ErrNobody = errors.New("bus: nobody answers there")
	// ErrAway: the bus is away; nothing was sent.
	ErrAway = presence.ErrBusAway
	// ErrFull: more is waiting to be sent than Talk holds.
	ErrFull = errors.New("bus: too much is waiting to be sent")
)

const (
	talkQueue    = 4096      // messages that wait to be sent, and of each subscription to be heard
	maxTalkBytes = 256 << 10 // of one message, either way
)

// Talk is what members say to each other on the bus beside load figures: questions
// to one member (<prefix>.member.<name>), and words to all who listen
// (<prefix>.<topic>). All of it is soft state: what is lost is not repeated here.
//
// Say, Ask and their callers never wait for the connection: nats.go's Publish can
// block on a server that stands still, so one goroutine (Run's) sends from a bounded
// queue. While the bus is away nothing is queued.
type Talk struct {
	// immutable after NewTalk
	conn    *nats.Conn
	prefix  string
	replies string // subject of answers, less the question's number
	log     *slog.Logger
	out     chan *nats.Msg

	// atomic
	number  atomic.Uint64
	dropped atomic.Uint64

	mu    sync.Mutex // guards below
	asked map[string]chan *nats.Msg
}

// NewTalk makes one; prefix is that of all subjects of the cluster. log may be nil.
func NewTalk(conn *nats.Conn, prefix string, log *slog.Logger) *Talk {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Talk{
		conn: conn, prefix: prefix, replies: conn.NewRespInbox() + ".", log: log,
		out: make(chan *nats.Msg, talkQueue), asked: make(map[string]chan *nats.Msg),
	}
}

// Dropped counts messages that were not sent or not heard for want of room.
func (t *Talk) Dropped() uint64 { return t.dropped.Load() }

// Run sends and takes answers until ctx ends. Without it Ask and Say only queue.
func (t *Talk) Run(ctx context.Context) error {
	in := make(chan *nats.Msg, talkQueue)
	sub, err := t.conn.ChanSubscribe(t.replies+"*", in)
	if err != nil {
		return fmt.Errorf("subscribe to answers: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is gone
	var wait sync.WaitGroup
	defer wait.Wait()
	// It hands answers out and ends with ctx; Run waits for it.
	wait.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-in:
				t.answered(m)
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-t.out:
			if err := t.conn.PublishMsg(m); err != nil {
				t.dropped.Add(1)
				t.log.Debug("could not send on the bus", "err", err)
			}
		}
	}
}

// Say sends to all who hear topic. It never blocks; what is returned is why it was
// not even queued.
func (t *Talk) Say(topic string, message []byte) error {
	return t.send(&nats.Msg{Subject: t.prefix + "." + topic, Data: message})
}

func (t *Talk) send(m *nats.Msg) error {
	switch {
	case len(m.Data) > maxTalkBytes:
		return fmt.Errorf("bus: a message of %d bytes, at most %d are sent", len(m.Data), maxTalkBytes)
	case !t.conn.IsConnected():
		return ErrAway
	}
	select {
	case t.out <- m:
		return nil
	default:
		t.dropped.Add(1)
		return ErrFull
	}
}

// Hear calls heard for each message of a topic, our own included, one after the
// other, until ctx ends; through any absence of the bus.
func (t *Talk) Hear(ctx context.Context, topic string, heard func(message []byte)) error {
	return t.take(ctx, t.prefix+"."+topic, func(m *nats.Msg) { heard(m.Data) })
}

// Ask puts a question to the member called name and waits for its answer until ctx
// ends. ErrNobody comes at once.
func (t *Talk) Ask(ctx context.Context, name string, question []byte) ([]byte, error) {
	reply := t.replies + strconv.FormatUint(t.number.Add(1), 36)
	answer := make(chan *nats.Msg, 1)
	t.mu.Lock()
	t.asked[reply] = answer
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.asked, reply)
		t.mu.Unlock()
	}()
	if err := t.send(&nats.Msg{Subject: t.member(name), Reply: reply, Data: question}); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("bus: ask %s: %w", name, ctx.Err())
	case m := <-answer:
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, ErrNobody
		}
		return m.Data, nil
	}
}

func (t *Talk) answered(m *nats.Msg) {
	t.mu.Lock()
	answer := t.asked[m.Subject]
	t.mu.Unlock()
	if answer == nil {
		return // too late
	}
	select {
	case answer <- m:
	default: // two members with one name; the first answer counts
	}
}

// Serve answers the questions put to name, one after the other, until ctx ends; nil
// as an answer: none is sent. answer must be quick: the others wait.
func (t *Talk) Serve(ctx context.Context, name string, answer func(question []byte) []byte) error {
	return t.take(ctx, t.member(name), func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		if data := answer(m.Data); data != nil {
			if err := t.send(&nats.Msg{Subject: m.Reply, Data: data}); err != nil {
				t.log.Debug("could not answer on the bus", "err", err)
			}
		}
	})
}

func (t *Talk) take(ctx context.Context, subject string, taken func(*nats.Msg)) error {
	in := make(chan *nats.Msg, talkQueue)
	sub, err := t.conn.ChanSubscribe(subject, in)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is gone
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	lost := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-in:
			if len(m.Data) > maxTalkBytes {
				t.dropped.Add(1)
				continue
			}
			taken(m)
		case <-ticker.C:
			if n, err := sub.Dropped(); err == nil && n > lost {
				t.dropped.Add(uint64(n - lost))
				lost = n
			}
		}
	}
}

// member is the subject of one member; every byte that the bus treats specially is
// escaped, so that two names never share one.
func (t *Talk) member(name string) string {
	var b strings.Builder
	b.WriteString(t.prefix + ".member.")
	for i := range len(name) {
		if c := name[i]; c > ' ' && c < 0x7f && !strings.ContainsRune(".*>$%", rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
