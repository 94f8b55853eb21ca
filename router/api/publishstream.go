package api

import (
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/channel"
)

// pubStream is one PublishStream. Two goroutines: one reads requests and starts them,
// the handler's own answers them in order. A request costs no third one, no context
// and no timer: at 50,000 requests a second they were a quarter of the router's work.
//
// Invariants: flights taken and not answered <= StreamRequests; what was taken is
// answered, also when the router leaves.
type pubStream struct {
	publisherService
	stream  grpc.BidiStreamingServer[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse]
	places  chan struct{}      // capacity StreamRequests: a token for each request unanswered
	flights chan *streamFlight // the same capacity, so that who has a place never waits
	wake    chan struct{}      // capacity 1: a call of this stream has finished

	mu     sync.Mutex // guards closed, and that nothing joins flights after it
	closed bool       // no more are taken

	flow flow // owned by the reader
}

// streamFlight is one unanswered request of a stream.
type streamFlight struct {
	call     channel.Call
	pubs     []*channel.Publication
	deadline time.Time
}

// PublishStream takes events and answers each request in order. At most
// StreamRequests requests are unanswered; then it reads no further.
func (s publisherService) PublishStream(stream grpc.BidiStreamingServer[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse]) error {
	p := &pubStream{
		publisherService: s, stream: stream, places: make(chan struct{}, s.cfg.StreamRequests),
		flights: make(chan *streamFlight, s.cfg.StreamRequests), wake: make(chan struct{}, 1),
	}
	ended := make(chan error, 1)
	// It reads requests and ends with the stream, soon after this returns; the
	// router waits for it when it stops.
	s.streams.Go(func() { ended <- p.read() })
	timer := time.NewTimer(s.cfg.PublishDeadline)
	defer timer.Stop()
	for {
		select {
		case f := <-p.flights:
			if err := p.answer(f, timer); err != nil {
				return err // the reader sees the stream end
			}
		case why := <-ended:
			return p.rest(timer, why)
		case <-s.stop:
			p.mu.Lock()
			p.closed = true
			p.mu.Unlock()
			return p.rest(timer, errStopping)
		}
	}
}

// rest answers what was taken before the end.
func (p *pubStream) rest(timer *time.Timer, why error) error {
	for {
		select {
		case f := <-p.flights:
			if err := p.answer(f, timer); err != nil {
				return err
			}
		default:
			return why
		}
	}
}

// answer waits for a request, until its deadline.
func (p *pubStream) answer(f *streamFlight, timer *time.Timer) error {
	for late := false; !late && f.call.Pending() > 0; {
		timer.Reset(time.Until(f.deadline))
		select {
		case <-p.wake:
		case <-timer.C:
			late = true
		case <-p.stream.Context().Done():
			late = true
		}
	}
	results := f.call.Results(f.pubs)
	<-p.places
	return p.stream.Send(&routerv1.PublishStreamResponse{Results: publishResults(f.pubs, results)})
}

// read takes requests until the stream ends; nil: the publisher sends no more, and
// the rest is answered.
func (p *pubStream) read() error {
	for {
		request, err := p.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(request.Publications) > maxBatch:
			return statusOf(invalid("publications: at most 1000 are allowed"))
		}
		// A place among the unanswered comes before the work.
		select {
		case p.places <- struct{}{}:
		case <-p.stream.Context().Done():
			return nil
		}
		if !p.take(request) {
			return nil
		}
	}
}

func (p *pubStream) take(request *routerv1.PublishStreamRequest) bool {
	f := &streamFlight{deadline: time.Now().Add(p.cfg.PublishDeadline)}
	f.call.Notify(len(request.Publications), p.wake)
	f.pubs = p.prepare(&f.call, request.Publications, nil)
	if !p.enter(f) {
		return false
	}
	// Without the lock: it may wait for the flow, and answers must not wait with it.
	p.flow.deadline = f.deadline
	p.publish(p.stream.Context(), f.pubs, &p.flow)
	return true
}

// enter lets a request be answered; false: no more are taken.
func (p *pubStream) enter(f *streamFlight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.flights <- f
	}
	return !p.closed
}
