package api

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// maxForwardBytes bounds one forwarded message, below the receiver's limit.
const maxForwardBytes = 2 << 20

// flow keeps the order of one publisher's calls (a PublishStream): what goes to
// other routers waits for what went before. The zero value is for a single call.
type flow struct {
	seq      uint64 // of the view at the last call
	last     <-chan struct{}
	deadline time.Time       // of the call that is started
	open     []*channel.Call // of that view, perhaps finished
}

// await waits, after a change of owners, for what the old ones have not answered yet:
// here or there, it must be numbered before what follows.
func (f *flow) await(ctx context.Context, seq uint64, c *channel.Call) {
	finished := func(c *channel.Call) bool { return c.Pending() == 0 }
	if len(f.open) >= 64 {
		f.open = slices.DeleteFunc(f.open, finished)
	}
	if f.seq != seq {
		ctx, cancel := context.WithDeadline(ctx, f.deadline)
		for len(f.open) > 0 {
			if f.open = slices.DeleteFunc(f.open, finished); len(f.open) > 0 && !pause(ctx, time.Millisecond) {
				f.open = nil
			}
		}
		cancel()
		f.seq = seq
	}
	f.open = append(f.open, c)
}

// publish starts publications that share a call: those whose channel is ours
// are queued, the others go to their owners. It may wait for the flow, never
// for the store.
func (s *Server) publish(ctx context.Context, pubs []*channel.Publication, f *flow) {
	view, seq := s.views.View()
	if f != nil && len(pubs) > 0 {
		f.await(ctx, seq, pubs[0].Call)
	}
	var remote map[string]*group
	for _, p := range pubs {
		if p.Stage() == channel.Done {
			continue // refused when it was looked at
		}
		owner := view.Owner(p.Channel)
		if owner == nil || owner.Id == s.cfg.ID || p.Forwarded {
			s.channels.Publish(p)
			continue
		}
		g := remote[owner.Id]
		if g == nil {
			if remote == nil {
				remote = make(map[string]*group)
			}
			g = &group{owner: owner}
			remote[owner.Id] = g
		}
		// Who gives up from here on knows nothing of the outcome; who has is told "not stored".
		if p.Take() {
			g.pubs = append(g.pubs, p)
		}
	}
	s.forward(ctx, remote, f)
}

// group is publications for one other router.
type group struct {
	owner *presence.Member
	pubs  []*channel.Publication
}

func (s *Server) forward(ctx context.Context, groups map[string]*group, f *flow) {
	if len(groups) == 0 {
		return
	}
	var before <-chan struct{}
	arrived := make(chan struct{})
	end := func() {}
	if f != nil {
		before = f.last
		f.last = arrived
		ctx, end = context.WithDeadline(ctx, f.deadline)
	}
	// It sends the groups, after those of the flow's last call, and ends with the
	// calls' deadline; Run waits for it.
	s.calls.Go(func() {
		defer close(arrived)
		defer end()
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
			}
		}
		var owners sync.WaitGroup
		for _, g := range groups {
			owners.Go(func() { s.Forward(ctx, g.owner, g.pubs) }) // one for each owner
		}
		owners.Wait()
	})
}

// Forward brings publications that have been taken to another router, or has them
// served here if that is known to be safe. It returns when each was finished or is
// served here. to may be nil: the router has left.
func (s *Server) Forward(ctx context.Context, to *presence.Member, pubs []*channel.Publication) {
	if to == nil {
		s.serveHere(ctx, pubs)
		return
	}
	conn, err := s.peers.Conn(to)
	if err != nil || s.peers.Down(to) {
		s.serveHere(ctx, pubs)
		return
	}
	client := gatewayv1.NewEdgeServiceClient(conn)
	for len(pubs) > 0 {
		request, n := forwardRequest(pubs)
		response, err := client.Submit(ctx, request)
		s.metrics.forwards.Add(float64(n))
		if err != nil || len(response.Results) != n {
			s.forwardFailed(ctx, pubs[:n], err)
		} else {
			s.forwarded(pubs[:n], response.Results)
		}
		pubs = pubs[n:]
	}
}

func forwardRequest(pubs []*channel.Publication) (*gatewayv1.SubmitRequest, int) {
	request := &gatewayv1.SubmitRequest{Forwarded: true}
	size := int64(0)
	for i, p := range pubs {
		p.Measure()
		if size += p.Size(); i > 0 && size > maxForwardBytes || i == maxBatch {
			return request, i
		}
		if p.Forwarded {
			request.Hops = max(request.Hops, p.Hops+1)
		}
		request.Submissions = append(request.Submissions, &gatewayv1.Submission{
			Channel: p.Channel, Data: p.Event.Data, Binary: p.Event.Binary, Meta: p.Event.Meta, Key: p.Event.Key,
			From: p.Event.From, OpenOnly: p.OpenOnly, ByClient: p.ByClient,
		})
	}
	return request, len(pubs)
}

func (s *Server) forwarded(pubs []*channel.Publication, results []*gatewayv1.SubmitResult) {
	for i, p := range pubs {
		r := results[i]
		p.Finish(channel.Result{
			Code: codes.Code(r.Code), Message: r.Message, RetryAfter: time.Duration(r.RetryAfterMs) * time.Millisecond,
			Epoch: r.Epoch, Offset: r.Offset, Repeat: r.Repeat, Durability: durabilityOf(r.Durability),
		})
	}
}

// forwardFailed serves here what has a key, or was certainly not taken: the key
// makes a second try harmless, the fence makes this router's runs safe. Of the
// rest nothing is known.
func (s *Server) forwardFailed(ctx context.Context, pubs []*channel.Publication, err error) {
	if status.Code(err) == codes.Unavailable {
		var here, unknown []*channel.Publication
		for _, p := range pubs {
			if p.Event.Key != "" && p.Namespace.Durability == namespace.Committed {
				here = append(here, p)
			} else {
				unknown = append(unknown, p)
			}
		}
		s.serveHere(ctx, here)
		pubs = unknown
	}
	for _, p := range pubs {
		res := channel.UnknownOutcome
		res.Message = "outcome unknown: the channel's router did not answer; repeat with the same key"
		if status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unauthenticated {
			res = channel.Result{Code: codes.Internal, Message: "routers refuse each other's calls: check their API keys"}
		}
		p.Finish(res)
	}
}

func (s *Server) serveHere(ctx context.Context, pubs []*channel.Publication) {
	for _, p := range pubs {
		switch {
		case p.Namespace.Durability != namespace.Committed:
			p.Finish(channel.NotOwner) // no fence: two must not number one channel
		case ctx.Err() != nil:
			p.Finish(channel.UnknownOutcome) // nobody waits any more
		default:
			s.metrics.servedForDead.Inc()
			p.Here = true
			p.Requeue()
			s.channels.Publish(p)
		}
	}
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
