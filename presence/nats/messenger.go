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

// Errors of Request and Broadcast.
var (
	// ErrNobody: nobody serves that name; the bus said so at once.
	ErrNobody = errors.New("bus: nobody answers there")
	// ErrAway: the bus is away; nothing was sent.
	ErrAway = presence.ErrBusAway
	// ErrFull: more is waiting to be sent than a Messenger holds.
	ErrFull = errors.New("bus: too much is waiting to be sent")
)

const (
	messageQueue    = 4096      // messages that wait to be sent, and of each subscription to be heard
	maxMessageBytes = 256 << 10 // of one message, either way
)

// Messenger carries what members tell each other beside load figures: request-reply to
// one member (<prefix>.member.<name>), and broadcasts to all who listen to a topic
// (<prefix>.<topic>). All of it is soft state: what is lost is not repeated here.
//
// Broadcast, Request and their callers never wait for the connection: nats.go's Publish can
// block on a server that stands still, so one goroutine (Run's) sends from a bounded
// queue. While the bus is away nothing is queued.
type Messenger struct {
	// immutable after NewMessenger
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

// NewMessenger makes one; prefix is that of all subjects of the cluster. log may be nil.
func NewMessenger(conn *nats.Conn, prefix string, log *slog.Logger) *Messenger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Messenger{
		conn: conn, prefix: prefix, replies: conn.NewRespInbox() + ".", log: log,
		out: make(chan *nats.Msg, messageQueue), asked: make(map[string]chan *nats.Msg),
	}
}

// Dropped counts messages that were not sent or not heard for want of room.
func (m *Messenger) Dropped() uint64 { return m.dropped.Load() }

// Run sends and takes answers until ctx ends. Without it Request and Broadcast only queue.
func (m *Messenger) Run(ctx context.Context) error {
	in := make(chan *nats.Msg, messageQueue)
	sub, err := m.conn.ChanSubscribe(m.replies+"*", in)
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
			case msg := <-in:
				m.answered(msg)
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-m.out:
			if err := m.conn.PublishMsg(msg); err != nil {
				m.dropped.Add(1)
				m.log.Debug("could not send on the bus", "err", err)
			}
		}
	}
}

// Broadcast sends to all who listen to a topic. It never blocks; what is returned is why
// the message was not even queued.
func (m *Messenger) Broadcast(topic string, message []byte) error {
	return m.send(&nats.Msg{Subject: m.prefix + "." + topic, Data: message})
}

func (m *Messenger) send(msg *nats.Msg) error {
	switch {
	case len(msg.Data) > maxMessageBytes:
		return fmt.Errorf("bus: a message of %d bytes, at most %d are sent", len(msg.Data), maxMessageBytes)
	case !m.conn.IsConnected():
		return ErrAway
	}
	select {
	case m.out <- msg:
		return nil
	default:
		m.dropped.Add(1)
		return ErrFull
	}
}

// Listen calls heard for each message of a topic, our own included, one after the
// other, until ctx ends; through any absence of the bus.
func (m *Messenger) Listen(ctx context.Context, topic string, heard func(message []byte)) error {
	return m.take(ctx, m.prefix+"."+topic, func(msg *nats.Msg) { heard(msg.Data) })
}

// Request puts a question to the member called name and waits for its answer until
// ctx ends. ErrNobody comes at once.
func (m *Messenger) Request(ctx context.Context, name string, question []byte) ([]byte, error) {
	reply := m.replies + strconv.FormatUint(m.number.Add(1), 36)
	answer := make(chan *nats.Msg, 1)
	m.mu.Lock()
	m.asked[reply] = answer
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.asked, reply)
		m.mu.Unlock()
	}()
	if err := m.send(&nats.Msg{Subject: m.member(name), Reply: reply, Data: question}); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("bus: ask %s: %w", name, ctx.Err())
	case msg := <-answer:
		if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
			return nil, ErrNobody
		}
		return msg.Data, nil
	}
}

func (m *Messenger) answered(msg *nats.Msg) {
	m.mu.Lock()
	answer := m.asked[msg.Subject]
	m.mu.Unlock()
	if answer == nil {
		return // too late
	}
	select {
	case answer <- msg:
	default: // two members with one name; the first answer counts
	}
}

// Serve answers the questions put to name, one after the other, until ctx ends; nil
// as an answer: none is sent. answer must be quick: the others wait.
func (m *Messenger) Serve(ctx context.Context, name string, answer func(question []byte) []byte) error {
	return m.take(ctx, m.member(name), func(msg *nats.Msg) {
		if msg.Reply == "" {
			return
		}
		if data := answer(msg.Data); data != nil {
			if err := m.send(&nats.Msg{Subject: msg.Reply, Data: data}); err != nil {
				m.log.Debug("could not answer on the bus", "err", err)
			}
		}
	})
}

func (m *Messenger) take(ctx context.Context, subject string, taken func(*nats.Msg)) error {
	in := make(chan *nats.Msg, messageQueue)
	sub, err := m.conn.ChanSubscribe(subject, in)
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
		case msg := <-in:
			if len(msg.Data) > maxMessageBytes {
				m.dropped.Add(1)
				continue
			}
			taken(msg)
		case <-ticker.C:
			if n, err := sub.Dropped(); err == nil && n > lost {
				m.dropped.Add(uint64(n - lost))
				lost = n
			}
		}
	}
}

// member is the subject of one member; every byte that the bus treats specially is
// escaped, so that two names never share one.
func (m *Messenger) member(name string) string {
	var b strings.Builder
	b.WriteString(m.prefix + ".member.")
	for i := range len(name) {
		if c := name[i]; c > ' ' && c < 0x7f && !strings.ContainsRune(".*>$%", rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
