package api

import (
	"context"

	"google.golang.org/grpc/codes"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// maxBatch is the most publications of one request, and channels of a Broadcast.
const maxBatch = 1000

type publisherService struct {
	routerv1.UnimplementedPublisherServiceServer
	*Server
}

// Publish takes one event.
func (s publisherService) Publish(ctx context.Context, request *routerv1.PublishRequest) (*routerv1.PublishResponse, error) {
	results, pubs := s.publishAll(ctx, []*routerv1.Publication{request.Publication}, nil)
	if results[0].Code != codes.OK {
		return nil, statusOf(results[0])
	}
	response := &routerv1.PublishResponse{Placed: &routerv1.Placed{}}
	place(response.Placed, pubs[0].Channel, &results[0])
	return response, nil
}

// PublishBatch takes 1 to 1,000 events.
func (s publisherService) PublishBatch(ctx context.Context, request *routerv1.PublishBatchRequest) (*routerv1.PublishBatchResponse, error) {
	switch n := len(request.Publications); {
	case n == 0:
		return nil, statusOf(invalid("publications: at least one must be given"))
	case n > maxBatch:
		return nil, statusOf(invalid("publications: at most 1000 are allowed"))
	}
	results, pubs := s.publishAll(ctx, request.Publications, nil)
	return &routerv1.PublishBatchResponse{Results: publishResults(pubs, results)}, nil
}

// Broadcast publishes one event on 1 to 1,000 channels.
func (s publisherService) Broadcast(ctx context.Context, request *routerv1.BroadcastRequest) (*routerv1.BroadcastResponse, error) {
	switch n := len(request.Channels); {
	case n == 0:
		return nil, statusOf(invalid("channels: at least one must be given"))
	case n > maxBatch:
		return nil, statusOf(invalid("channels: at most 1000 are allowed"))
	case request.Publication == nil:
		return nil, statusOf(invalid("publication: must be given"))
	}
	publications := make([]*routerv1.Publication, len(request.Channels))
	for i := range publications {
		publications[i] = request.Publication
	}
	results, pubs := s.publishAll(ctx, publications, request.Channels)
	return &routerv1.BroadcastResponse{Results: publishResults(pubs, results)}, nil
}

func (s publisherService) publishAll(ctx context.Context, in []*routerv1.Publication, channels []string) ([]channel.Result, []*channel.Publication) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishDeadline)
	defer cancel()
	c := channel.NewCall(len(in))
	pubs := s.prepare(c, in, channels)
	s.publish(ctx, pubs, nil)
	return c.Wait(ctx, pubs), pubs
}

// prepare makes publications of what a backend sent; those that are not
// admitted are finished. channels, if given, replace the publications' own; then
// the one event is looked at once.
func (s publisherService) prepare(c *channel.Call, in []*routerv1.Publication, channels []string) []*channel.Publication {
	pubs := make([]*channel.Publication, len(in))
	block := make([]channel.Publication, len(in))
	var compact []byte
	for i, q := range in {
		p := &block[i]
		pubs[i] = p
		p.Call = c
		if q == nil {
			p.Finish(invalid("publication: must be given"))
			continue
		}
		p.Channel = q.Channel
		switch d := q.Data.(type) {
		case *routerv1.Publication_Json:
			p.Event.Data = []byte(d.Json)
			if compact != nil {
				p.Event.Data, p.Event.Binary = compact, true // looked at already
			}
		case *routerv1.Publication_Binary:
			p.Event.Data, p.Event.Binary = d.Binary, true
		}
		p.Event.Meta, p.Event.Key = wire.MetaJSON(q.Meta), q.Key
		if channels == nil {
			s.admit(p)
			continue
		}
		p.Channel = channels[i]
		s.admit(p)
		if _, json := q.Data.(*routerv1.Publication_Json); json && p.Stage() != channel.Done {
			compact, p.Event.Binary = p.Event.Data, false
		}
	}
	return pubs
}

func place(to *routerv1.Placed, name string, res *channel.Result) {
	to.Channel, to.Epoch, to.Offset, to.Repeat = name, wire.FormatEpoch(res.Epoch), res.Offset, res.Repeat
	to.Durability = said(*res)
}

// publishResults is what a batch hears, in one allocation for all that went well.
func publishResults(pubs []*channel.Publication, results []channel.Result) []*routerv1.PublishResult {
	type slot struct {
		result  routerv1.PublishResult
		outcome routerv1.PublishResult_Placed
		placed  routerv1.Placed
	}
	block := make([]slot, len(results))
	out := make([]*routerv1.PublishResult, len(results))
	for i := range results {
		res, b := &results[i], &block[i]
		out[i] = &b.result
		if res.Code != codes.OK {
			b.result.Outcome = &routerv1.PublishResult_Failure{Failure: failure(*res)}
			continue
		}
		place(&b.placed, pubs[i].Channel, res)
		b.outcome.Placed = &b.placed
		b.result.Outcome = &b.outcome
	}
	return out
}

// said is what a result tells of durability.
func said(res channel.Result) routerv1.Durability {
	switch {
	case res.Code != codes.OK:
		return routerv1.Durability_DURABILITY_UNSPECIFIED
	case res.Durability == namespace.None:
		return routerv1.Durability_DURABILITY_NONE
	}
	return routerv1.Durability_DURABILITY_COMMITTED
}

// durabilityOf reads what another router said. One that says nothing knew only of
// namespaces whose durability is their own. A word that this version does not know
// promises nothing.
func durabilityOf(n uint32) namespace.Durability {
	switch routerv1.Durability(n) {
	case routerv1.Durability_DURABILITY_UNSPECIFIED, routerv1.Durability_DURABILITY_COMMITTED:
		return namespace.Committed
	}
	return namespace.None
}
