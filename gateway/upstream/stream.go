package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// pending is a question until it is answered. Guarded by the mutex of its stream.
type pending struct {
	ask  *gatewayv1.Ask
	to   feed.Answerer
	id   uint64 // the asker's
	sent uint64 // the id on the stream; 0: not sent
	at   time.Time
	done bool
}

func (p *pending) unavailable(why string) {
	p.to.Answer(&gatewayv1.Answer{Id: p.id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, Message: why})
}

// streamState says whether questions may be queued.
//
//	idle --opened--> up <--answer-- probing <--opened-- down
//	  |               |                |                  ^
//	  +- cannot open -+---- failed ----+------------------+
type streamState uint8

const (
	idle streamState = iota // questions wait until it is open
	up
	down    // questions go elsewhere
	probing // open after a failure: one question at a time may try it
)

// stream is the Sync stream to one router.
type stream struct {
	// immutable after newStream
	u      *Upstream
	member *presence.Member
	cancel context.CancelFunc // ends it for good
	wake   chan struct{}      // capacity 1: the queue is not empty

	mu     sync.Mutex // guards all below; never held across a call
	state  streamState
	probed bool                // probing, and the question is under way
	queue  []*pending          // not sent
	sent   map[uint64]*pending // by the id on the stream
	order  []*pending          // all, some done, in order of their deadlines
	next   uint64              // id
	heard  time.Time           // last answer
	abort  context.CancelFunc  // ends what is open now
}

func newStream(u *Upstream, m *presence.Member, cancel context.CancelFunc) *stream {
	return &stream{u: u, member: m, cancel: cancel, wake: make(chan struct{}, 1), sent: make(map[uint64]*pending)}
}

// put queues a question; false: the stream is down.
func (s *stream) put(p *pending) bool {
	s.mu.Lock()
	if s.state == down || s.state == probing && s.probed {
		s.mu.Unlock()
		return false
	}
	s.probed = s.state == probing
	s.queue = append(s.queue, p)
	s.order = append(s.order, p)
	first := len(s.queue) == 1
	s.mu.Unlock()
	s.u.open.Add(1)
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// run opens the stream for its first question and again whenever it fails.
func (s *stream) run(ctx context.Context) {
	defer s.fail("the router has left")
	select {
	case <-ctx.Done():
		return
	case <-s.wake:
	}
	wait := s.u.cfg.MinBackoff
	for ctx.Err() == nil {
		opened := time.Now()
		err := s.serve(ctx)
		s.fail("the connection to the router is lost")
		if ctx.Err() != nil {
			return
		}
		if s.heardSince(opened) {
			wait = s.u.cfg.MinBackoff
		}
		s.u.log.Warn("stream to router ended", "router", s.member.Id, "err", err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait/2+1)):
		}
		wait = min(2*wait, s.u.cfg.MaxBackoff)
	}
}

func (s *stream) heardSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard.After(t)
}

// serve opens the stream and carries questions and answers until it fails.
func (s *stream) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sync, err := s.open(ctx, cancel)
	if err != nil {
		return err
	}
	s.u.metrics.streams.Inc()
	defer s.u.metrics.streams.Dec()
	received := make(chan error, 1)
	// It takes answers, ends when the stream does, and is waited for below.
	go func() {
		received <- s.receive(sync)
		cancel()
	}()
	err = s.send(ctx, sync)
	cancel()
	if why := <-received; err == nil {
		err = why
	}
	return err
}

func (s *stream) open(ctx context.Context, cancel context.CancelFunc) (grpc.BidiStreamingClient[gatewayv1.SyncRequest, gatewayv1.SyncResponse], error) {
	conn, err := s.u.cfg.Peers.Conn(s.member)
	if err != nil {
		return nil, err
	}
	timeout := time.AfterFunc(s.u.cfg.OpenTimeout, cancel)
	defer timeout.Stop()
	sync, err := gatewayv1.NewEdgeServiceClient(conn).Sync(ctx)
	if err != nil {
		return nil, err
	}
	if err := sync.Send(&gatewayv1.SyncRequest{Edge: s.u.cfg.Edge}); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	s.mu.Lock()
	s.abort, s.probed = cancel, false
	if s.state == idle {
		s.state = up
	} else {
		s.state = probing
	}
	s.mu.Unlock()
	return sync, nil
}

// send carries questions until ctx ends (nil) or the stream fails. The first of a
// batch waits a little for others.
func (s *stream) send(ctx context.Context, sync grpc.BidiStreamingClient[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	gather := time.NewTimer(0)
	defer gather.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gather.C:
		}
		for batch := s.take(); len(batch) > 0; batch = s.take() {
			s.u.metrics.batches.Inc()
			if err := sync.Send(&gatewayv1.SyncRequest{Asks: batch}); err != nil {
				return nil // receive knows why
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			gather.Reset(s.u.cfg.Gather)
		}
	}
}

// take moves a message's worth of questions from queue to sent.
func (s *stream) take() []*gatewayv1.Ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []*gatewayv1.Ask
	size, n := 0, 0
	for _, p := range s.queue {
		if len(batch) == s.u.cfg.BatchAsks || size >= s.u.cfg.BatchBytes {
			break
		}
		n++
		if p.done {
			continue // too late already
		}
		s.next++
		p.ask.Id, p.sent = s.next, s.next
		s.sent[s.next] = p
		batch = append(batch, p.ask)
		size += proto.Size(p.ask)
	}
	clear(s.queue[:n])
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil
	}
	return batch
}

// receive takes answers until the stream ends.
func (s *stream) receive(sync grpc.BidiStreamingClient[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	for {
		m, err := sync.Recv()
		if err != nil {
			return err
		}
		s.u.lag.told(s.member.Id, time.Duration(m.BackfillLagMs)*time.Millisecond, time.Now())
		for _, a := range m.Answers {
			s.answer(a)
		}
	}
}

func (s *stream) answer(a *gatewayv1.Answer) {
	now := time.Now()
	s.mu.Lock()
	s.heard = now
	if s.state == probing {
		s.state = up
	}
	p := s.sent[a.Id]
	delete(s.sent, a.Id)
	if p != nil {
		p.done = true
	}
	s.mu.Unlock()
	if p == nil {
		s.u.metrics.late.Inc()
		return
	}
	s.u.open.Add(-1)
	s.u.metrics.answers[outcomeAnswered].Inc()
	s.u.metrics.latency.Observe(now.Sub(p.at).Seconds())
	a.Id = p.id
	p.to.Answer(a)
}

// expire answers the questions whose deadline has passed. If the router has said
// nothing all the while, the stream is ended: others shall be asked.
func (s *stream) expire(now time.Time) {
	var late []*pending
	s.mu.Lock()
	n := 0
	for _, p := range s.order {
		if !p.done && now.Sub(p.at) < s.u.cfg.AskDeadline {
			break
		}
		n++
		if !p.done {
			p.done = true
			late = append(late, p)
		}
	}
	clear(s.order[:n])
	if s.order = s.order[n:]; len(s.order) == 0 {
		s.order = nil
	}
	for _, p := range late {
		delete(s.sent, p.sent)
	}
	silent := s.state != idle && s.state != down && len(late) > 0 && s.heard.Before(late[0].at)
	abort := s.abort
	s.mu.Unlock()
	s.finish(late, outcomeDeadline, "the router does not answer")
	if silent {
		abort()
	}
}

// fail answers every question; from now on they go elsewhere.
func (s *stream) fail(why string) {
	s.mu.Lock()
	s.state = down
	var open []*pending
	for _, p := range s.order {
		if !p.done {
			p.done = true
			open = append(open, p)
		}
	}
	s.order, s.queue = nil, nil
	clear(s.sent)
	s.mu.Unlock()
	s.finish(open, outcomeFailed, why)
}

func (s *stream) finish(open []*pending, o outcome, why string) {
	s.u.open.Add(-int64(len(open)))
	s.u.metrics.answers[o].Add(float64(len(open)))
	for _, p := range open {
		p.unavailable(why)
	}
}
