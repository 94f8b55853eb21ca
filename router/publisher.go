package router

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// maxBatch is the most publications of one request, and channels of a Broadcast.
const maxBatch = 1000

type publisherService struct {
	routerv1.UnimplementedPublisherServiceServer
	*Router
}

// Publish takes one event.
func (s publisherService) Publish(ctx context.Context, request *routerv1.PublishRequest) (*routerv1.PublishResponse, error) {
	results, channels := s.publishAll(ctx, []*routerv1.Publication{request.Publication}, nil)
	if results[0].code != codes.OK {
		return nil, statusOf(results[0])
	}
	return &routerv1.PublishResponse{Placed: placed(channels[0], results[0])}, nil
}

// PublishBatch takes up to 1,000 events.
func (s publisherService) PublishBatch(ctx context.Context, request *routerv1.PublishBatchRequest) (*routerv1.PublishBatchResponse, error) {
	if n := len(request.Publications); n > maxBatch {
		return nil, statusOf(invalid("publications: at most 1000 are allowed"))
	}
	results, channels := s.publishAll(ctx, request.Publications, nil)
	return &routerv1.PublishBatchResponse{Results: publishResults(channels, results)}, nil
}

// Broadcast publishes one event on up to 1,000 channels.
func (s publisherService) Broadcast(ctx context.Context, request *routerv1.BroadcastRequest) (*routerv1.BroadcastResponse, error) {
	if n := len(request.Channels); n > maxBatch {
		return nil, statusOf(invalid("channels: at most 1000 are allowed"))
	}
	if request.Publication == nil {
		return nil, statusOf(invalid("publication: must be given"))
	}
	publications := make([]*routerv1.Publication, len(request.Channels))
	for i := range publications {
		publications[i] = request.Publication
	}
	results, channels := s.publishAll(ctx, publications, request.Channels)
	return &routerv1.BroadcastResponse{Results: publishResults(channels, results)}, nil
}

func (s publisherService) publishAll(ctx context.Context, in []*routerv1.Publication, channels []string) ([]result, []string) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishDeadline)
	defer cancel()
	c, pubs := s.prepare(in, channels)
	s.publish(ctx, pubs, nil)
	return c.wait(ctx, pubs), names(pubs)
}

func names(pubs []*publication) []string {
	out := make([]string, len(pubs))
	for i, p := range pubs {
		out[i] = p.channel
	}
	return out
}

// prepare makes publications of what a backend sent; those that are not
// admitted are finished. channels, if given, replace the publications' own; then
// the one event is looked at once.
func (s publisherService) prepare(in []*routerv1.Publication, channels []string) (*call, []*publication) {
	c := newCall(len(in))
	pubs := make([]*publication, len(in))
	block := make([]publication, len(in))
	var compact []byte
	for i, q := range in {
		p := &block[i]
		pubs[i] = p
		p.call = c
		if q == nil {
			p.finish(invalid("publication: must be given"))
			continue
		}
		p.channel = q.Channel
		switch d := q.Data.(type) {
		case *routerv1.Publication_Json:
			p.event.Data = []byte(d.Json)
			if compact != nil {
				p.event.Data, p.event.Binary = compact, true // looked at already
			}
		case *routerv1.Publication_Binary:
			p.event.Data, p.event.Binary = d.Binary, true
		}
		p.event.Meta, p.event.Key = wire.MetaJSON(q.Meta), q.Key
		if channels == nil {
			s.admit(p)
			continue
		}
		p.channel = channels[i]
		s.admit(p)
		if _, json := q.Data.(*routerv1.Publication_Json); json && p.stage.Load() != done {
			compact, p.event.Binary = p.event.Data, false
		}
	}
	return c, pubs
}

// PublishStream takes events and answers each request in order. At most
// StreamRequests requests are unanswered; then it reads no further.
func (s publisherService) PublishStream(stream grpc.BidiStreamingServer[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse]) error {
	flights := make(chan *streamFlight, s.cfg.StreamRequests)
	ended := make(chan error, 1)
	// It reads requests and ends with the stream, soon after this returns; the
	// router waits for it when it stops.
	s.streams.Go(func() {
		defer close(flights)
		ended <- s.readStream(stream, flights)
	})
	for f := range flights {
		results := f.call.wait(f.ctx, f.pubs)
		f.cancel()
		if err := stream.Send(&routerv1.PublishStreamResponse{Results: publishResults(names(f.pubs), results)}); err != nil {
			return err // the reader sees the stream end
		}
	}
	return <-ended
}

// streamFlight is one unanswered request of a stream.
type streamFlight struct {
	call   *call
	pubs   []*publication
	ctx    context.Context
	cancel context.CancelFunc
}

func (s publisherService) readStream(stream grpc.BidiStreamingServer[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse], flights chan<- *streamFlight) error {
	requests := make(chan *routerv1.PublishStreamRequest)
	failed := make(chan error, 1)
	// It receives and ends when the stream does; the router waits for it.
	s.streams.Go(func() {
		for {
			request, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- request:
			case <-stream.Context().Done():
				return
			}
		}
	})
	var f flow
	for {
		select {
		case request := <-requests:
			if len(request.Publications) > maxBatch {
				return statusOf(invalid("publications: at most 1000 are allowed"))
			}
			if !s.startFlight(stream.Context(), request, &f, flights) {
				return nil
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil // it sends no more; the rest is answered
			}
			return err
		case <-stream.Context().Done():
			return nil
		case <-s.stop:
			return errStopping
		}
	}
}

func (s publisherService) startFlight(ctx context.Context, request *routerv1.PublishStreamRequest, f *flow, flights chan<- *streamFlight) bool {
	deadline, cancel := context.WithTimeout(ctx, s.cfg.PublishDeadline)
	c, pubs := s.prepare(request.Publications, nil)
	flight := &streamFlight{call: c, pubs: pubs, ctx: deadline, cancel: cancel}
	// A place among the unanswered comes before the work.
	select {
	case flights <- flight:
	case <-ctx.Done():
		cancel()
		return false
	}
	s.publish(deadline, pubs, f)
	return true
}

func placed(channel string, res result) *routerv1.Placed {
	return &routerv1.Placed{Channel: channel, Epoch: wire.FormatEpoch(res.epoch), Offset: res.offset, Repeat: res.repeat}
}

func publishResults(channels []string, results []result) []*routerv1.PublishResult {
	out := make([]*routerv1.PublishResult, len(results))
	for i, res := range results {
		out[i] = &routerv1.PublishResult{}
		if res.code == codes.OK {
			out[i].Outcome = &routerv1.PublishResult_Placed{Placed: placed(channels[i], res)}
		} else {
			out[i].Outcome = &routerv1.PublishResult_Failure{Failure: failure(res)}
		}
	}
	return out
}
