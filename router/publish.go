package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Peers has the connections to the other routers. presence/peers.Peers is one.
type Peers interface {
	// Conn makes the connection if need be, without waiting.
	Conn(*presence.Member) (*grpc.ClientConn, error)
	// Down says that a call would fail before it was sent.
	Down(*presence.Member) bool
}

// maxForwardBytes bounds one forwarded message, below the receiver's limit.
const maxForwardBytes = 2 << 20

// flow keeps the order of one publisher's calls (a PublishStream): what goes to
// other routers waits for what went before. The zero value is for a single call.
type flow struct {
	seq      uint64 // of the view at the last call
	last     <-chan struct{}
	deadline time.Time // of the call that is started
	open     []*call   // of that view, perhaps finished
}

// settle waits, after a change of owners, for what the old ones have not answered yet:
// here or there, it must be numbered before what follows.
func (f *flow) settle(ctx context.Context, seq uint64, c *call) {
	finished := func(c *call) bool { return c.pending.Load() == 0 }
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
func (r *Router) publish(ctx context.Context, pubs []*publication, f *flow) {
	views := r.own.current()
	view := &views[len(views)-1]
	if f != nil && len(pubs) > 0 {
		f.settle(ctx, view.seq, pubs[0].call)
	}
	var remote map[string]*group
	for _, p := range pubs {
		if p.stage.Load() == done {
			continue // refused when it was looked at
		}
		owner := view.snapshot.Owner(p.channel)
		if owner == nil || owner.Id == r.cfg.ID || p.forwarded {
			r.sequencer.enqueue(p)
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
		if p.stage.CompareAndSwap(queued, taken) {
			g.pubs = append(g.pubs, p)
		}
	}
	r.forward(ctx, remote, f)
}

// group is publications for one other router.
type group struct {
	owner *presence.Member
	pubs  []*publication
}

func (r *Router) forward(ctx context.Context, groups map[string]*group, f *flow) {
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
	r.calls.Go(func() {
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
			owners.Go(func() { r.send(ctx, g) }) // one for each owner
		}
		owners.Wait()
	})
}

// send brings one group to its owner, or serves it here if that is known to be safe.
func (r *Router) send(ctx context.Context, g *group) {
	conn, err := r.peers.Conn(g.owner)
	if err != nil || r.peers.Down(g.owner) {
		r.serveHere(ctx, g.pubs)
		return
	}
	client := gatewayv1.NewEdgeServiceClient(conn)
	for pubs := g.pubs; len(pubs) > 0; {
		request, n := forwardRequest(pubs)
		response, err := client.Submit(ctx, request)
		r.metrics.forwards.Add(float64(n))
		if err != nil || len(response.Results) != n {
			r.forwardFailed(ctx, pubs[:n], err)
		} else {
			r.forwarded(pubs[:n], response.Results)
		}
		pubs = pubs[n:]
	}
}

func forwardRequest(pubs []*publication) (*gatewayv1.SubmitRequest, int) {
	request := &gatewayv1.SubmitRequest{Forwarded: true}
	size := int64(0)
	for i, p := range pubs {
		p.measure()
		if size += p.size; i > 0 && size > maxForwardBytes || i == maxBatch {
			return request, i
		}
		if p.forwarded {
			request.Hops = max(request.Hops, p.hops+1)
		}
		request.Submissions = append(request.Submissions, &gatewayv1.Submission{
			Channel: p.channel, Data: p.event.Data, Binary: p.event.Binary, Meta: p.event.Meta, Key: p.event.Key,
			From: p.event.From, OpenOnly: p.openOnly, ByClient: p.byClient,
		})
	}
	return request, len(pubs)
}

func (r *Router) forwarded(pubs []*publication, results []*gatewayv1.SubmitResult) {
	for i, p := range pubs {
		s := results[i]
		p.finish(result{
			code: codes.Code(s.Code), message: s.Message, retryAfter: time.Duration(s.RetryAfterMs) * time.Millisecond,
			epoch: s.Epoch, offset: s.Offset, repeat: s.Repeat, durability: durabilityOf(s.Durability),
		})
	}
}

// forwardFailed serves here what has a key, or was certainly not taken: the key
// makes a second try harmless, the fence makes this router's runs safe. Of the
// rest nothing is known.
func (r *Router) forwardFailed(ctx context.Context, pubs []*publication, err error) {
	if status.Code(err) == codes.Unavailable {
		var here, unknown []*publication
		for _, p := range pubs {
			if p.event.Key != "" && p.ns.Durability == Committed {
				here = append(here, p)
			} else {
				unknown = append(unknown, p)
			}
		}
		r.serveHere(ctx, here)
		pubs = unknown
	}
	for _, p := range pubs {
		res := unknownOutcome
		res.message = "outcome unknown: the channel's router did not answer; repeat with the same key"
		if status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unauthenticated {
			res = result{code: codes.Internal, message: "routers refuse each other's calls: check their API keys"}
		}
		p.finish(res)
	}
}

func (r *Router) serveHere(ctx context.Context, pubs []*publication) {
	for _, p := range pubs {
		switch {
		case p.ns.Durability != Committed:
			p.finish(notOwner) // no fence: two must not number one channel
		case ctx.Err() != nil:
			p.finish(unknownOutcome) // nobody waits any more
		default:
			r.metrics.servedForDead.Inc()
			p.here = true
			p.stage.Store(queued)
			r.sequencer.enqueue(p)
		}
	}
}

// admit checks a publication against names, limits, the namespace's rules and its rate; one
// that fails is finished at once.
func (r *Router) admit(p *publication) {
	res := r.check(p)
	if res.code == codes.OK {
		res = r.limit(p) // last, so that mistakes cost nothing of the rate
	}
	if res.code != codes.OK {
		p.finish(res)
	}
}

func unknownNamespace(channel string) result {
	name := wire.Namespace(channel)
	if name == "" {
		return result{code: codes.NotFound, message: `channel: no colon, and there is no namespace "` + bareNamespace + `"`}
	}
	return result{code: codes.NotFound, message: "channel: unknown namespace " + name}
}

func (r *Router) check(p *publication) result {
	e := &p.event
	if err := wire.CheckChannel(p.channel); err != nil {
		return invalid(err.Error())
	}
	if err := wire.CheckKey(e.Key); err != nil {
		return invalid(err.Error())
	}
	if p.ns = r.namespaces.of(p.channel); p.ns == nil {
		return unknownNamespace(p.channel)
	}
	if p.byClient && (p.ns.Publish == Nobody || p.openOnly && p.ns.Publish != Everyone) {
		return result{code: codes.PermissionDenied, message: "channel: clients may not publish here without a grant"}
	}
	if !e.Binary && !p.forwarded { // the router that forwards has looked
		if len(e.Data) == 0 {
			return invalid("data: json or binary must be given")
		}
		compact, err := wire.CompactJSON(e.Data)
		if err != nil {
			return invalid(err.Error())
		}
		e.Data = compact
	}
	switch {
	case len(e.Data) > r.cfg.MaxEventBytes:
		return tooLarge("data", len(e.Data), r.cfg.MaxEventBytes)
	case len(e.Meta) > wire.MaxMetaBytes:
		return tooLarge("meta", len(e.Meta), wire.MaxMetaBytes)
	}
	if e.Key == "" {
		return result{}
	}
	e.Scope = "b"
	if e.From != "" {
		e.Scope = "u:" + e.From
	}
	return result{}
}

// Submit publishes for users and for other routers.
func (s edgeService) Submit(ctx context.Context, request *gatewayv1.SubmitRequest) (*gatewayv1.SubmitResponse, error) {
	if len(request.Submissions) > maxBatch {
		return nil, statusOf(invalid("submissions: at most 1000 are allowed"))
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishDeadline)
	defer cancel()
	c := newCall(len(request.Submissions))
	pubs := make([]*publication, len(request.Submissions))
	for i, sub := range request.Submissions {
		p := &publication{channel: sub.Channel, call: c, openOnly: sub.OpenOnly, byClient: sub.ByClient, forwarded: request.Forwarded, hops: request.Hops}
		p.event.Data, p.event.Binary, p.event.Meta = sub.Data, sub.Binary, sub.Meta
		p.event.Key, p.event.From = sub.Key, sub.From
		s.admit(p)
		pubs[i] = p
	}
	s.publish(ctx, pubs, nil)
	response := &gatewayv1.SubmitResponse{Results: make([]*gatewayv1.SubmitResult, len(pubs))}
	for i, res := range c.wait(ctx, pubs) {
		response.Results[i] = &gatewayv1.SubmitResult{
			Code: uint32(res.code), Message: res.message, RetryAfterMs: uint32(res.retryAfter.Milliseconds()),
			Epoch: res.epoch, Offset: res.offset, Repeat: res.repeat, Durability: uint32(said(res)),
		}
	}
	return response, nil
}
