package torture

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// streamer publishes by PublishStream, several requests ahead of their answers. What a
// stream that breaks did not answer is sent again, one by one, as the publisher does.
// Owned by its goroutine.
type streamer struct {
	publisher
	streams int
}

const (
	aheadMost  = 8 // requests of a stream that are not answered
	streamTime = 4 * time.Second
)

func (s *streamer) run(ctx context.Context) {
	for ctx.Err() == nil {
		left := s.stream(ctx)
		if len(left) > 0 {
			s.repeat(ctx, left)
		}
		pause := time.NewTimer(retryPause)
		<-pause.C
	}
}

// stream is one stream by one router; it returns what was not settled.
func (s *streamer) stream(ctx context.Context) (left []*draft) {
	to := s.tr.routers[s.rng.IntN(s.tr.members)]
	s.streams++
	flow := fmt.Sprintf("stream %d of %s", s.streams, s.name)
	bounded, cancel := context.WithTimeout(context.Background(), streamTime+callTime)
	defer cancel()
	stream, err := routerv1.NewPublisherServiceClient(to.conn).PublishStream(bounded)
	if err != nil {
		return nil
	}
	sent := make(chan []*draft, aheadMost)
	var receiving sync.WaitGroup
	receiving.Go(func() { left = s.receive(stream, sent) }) // ends with the stream and sent; waited for below
	var unsent []*draft
	tick := time.NewTicker(publishTick)
	defer tick.Stop()
	end := time.NewTimer(streamTime)
	defer end.Stop()
	for turn, open := 0, true; open; {
		select {
		case <-ctx.Done():
			open = false
			continue
		case <-end.C:
			open = false
			continue
		case <-tick.C:
		}
		request := &routerv1.PublishStreamRequest{}
		batch := make([]*draft, 1+s.rng.IntN(4))
		for i := range batch {
			d := s.draft(s.tr.channel(s.rng))
			if d.Key == "" {
				d.Key = d.Value
			}
			d.Call = s.tr.rec.now()
			turn++
			request.Publications = append(request.Publications, d.publication(to, flow, turn))
			batch[i] = d
		}
		select { // a stream that stands still stops us, not the deadline
		case sent <- batch:
			open = stream.Send(request) == nil
		case <-bounded.Done():
			unsent = batch
			open = false
		}
	}
	_ = stream.CloseSend() // the stream may have broken; the receiver hears why
	close(sent)
	receiving.Wait()
	return append(left, unsent...)
}

// receive takes answers in order, until the stream ends; what has none stays open.
func (s *streamer) receive(stream grpc.BidiStreamingClient[routerv1.PublishStreamRequest, routerv1.PublishStreamResponse], sent <-chan []*draft) (left []*draft) {
	var broken error
	for batch := range sent {
		var resp *routerv1.PublishStreamResponse
		if broken == nil {
			resp, broken = stream.Recv()
		}
		answered(s.tr.rec.now(), batch, resp.GetResults(), broken)
		var open []*draft
		for _, d := range batch {
			if !d.settled {
				open = append(open, d)
				continue
			}
			d.Return = s.tr.rec.now()
			s.tr.rec.published(d.Publish)
		}
		left = append(left, open...)
	}
	return left
}
