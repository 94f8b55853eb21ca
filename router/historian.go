package router

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// forwardedHeader marks a read that another router passed on: it is answered
// where it arrives.
const forwardedHeader = "spillway-forwarded"

// maxHistoryBytes bounds the data of one answer; more is then true.
const maxHistoryBytes = 1 << 20

type historyService struct {
	routerv1.UnimplementedHistoryServiceServer
	*Router
}

// ReadHistory returns events of one channel.
func (s historyService) ReadHistory(ctx context.Context, request *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	ns, limit, err := s.admitHistory(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadDeadline)
	defer cancel()
	if ns.Durability == None {
		return s.volatileHistory(ctx, request, ns, limit)
	}
	res, ok := s.historyFromTail(request, limit)
	if !ok {
		if res, err = s.historyFromStore(ctx, request, ns, limit); err != nil {
			return nil, err
		}
	}
	return historyResponse(request, res)
}

func (s historyService) admitHistory(request *routerv1.ReadHistoryRequest) (*Namespace, int, error) {
	if err := wire.CheckChannel(request.Channel); err != nil {
		return nil, 0, statusOf(invalid(err.Error()))
	}
	ns := s.namespaces.of(request.Channel)
	if ns == nil {
		return nil, 0, statusOf(unknownNamespace(request.Channel))
	}
	switch {
	case request.Limit > maxPage:
		return nil, 0, statusOf(invalid("limit: at most 1000"))
	case request.Limit == 0:
		return ns, 100, nil
	}
	return ns, int(request.Limit), nil
}

// bounds of a history request as a key for reads; `before 0` there means "from
// the newest", so before offset 1 needs its own word: nothing.
func historyKey(request *routerv1.ReadHistoryRequest, limit int) (key readKey, nothing bool) {
	key = readKey{channel: request.Channel, limit: limit, maxBytes: maxHistoryBytes, reverse: request.Reverse}
	if !request.Reverse {
		key.after = request.GetOffset()
		return key, false
	}
	if request.Offset == nil {
		return key, false
	}
	if *request.Offset <= 1 {
		return readKey{channel: request.Channel, head: true}, true
	}
	key.before = *request.Offset
	return key, false
}

func (s historyService) historyFromStore(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *Namespace, limit int) (readResult, error) {
	key, _ := historyKey(request, limit)
	return s.readOne(ctx, key, ns)
}

func (s historyService) readOne(ctx context.Context, key readKey, ns *Namespace) (readResult, error) {
	got := make(chan readResult, 1)
	deadline, _ := ctx.Deadline()
	s.reads.add(key, ns, waiter{deadline: deadline, gone: func() bool { return ctx.Err() != nil }, answer: func(res readResult) { got <- res }})
	var res readResult
	select {
	case res = <-got:
	case <-ctx.Done():
		res.err = ctx.Err()
	}
	if res.err != nil {
		return res, statusOf(result{code: codes.Unavailable, message: "history cannot be read now", retryAfter: time.Second})
	}
	return res, nil
}

// historyFromTail answers from memory if that is trusted and has the whole page.
func (s historyService) historyFromTail(request *routerv1.ReadHistoryRequest, limit int) (readResult, bool) {
	name := request.Channel
	shard := s.table.lock(name)
	defer shard.mu.Unlock()
	ch := shard.channels[name]
	if ch == nil || !ch.known || ch.floor == 0 || len(ch.tail.events) == 0 || !s.own.trusted(name, ch.trust, ch.settled) || time.Now().Before(ch.late) {
		return readResult{}, false
	}
	floor := ch.floor
	if size := uint64(ch.ns.HistorySize); size > 0 && ch.head > size {
		floor = max(floor, ch.head-size+1)
	}
	res := readResult{epoch: ch.epoch, head: ch.head, floor: floor}
	return res, pageFromTail(&ch.tail, request, limit, &res)
}

// pageFromTail fills in the events; false: the tail does not have all of them.
func pageFromTail(t *tail, request *routerv1.ReadHistoryRequest, limit int, res *readResult) bool {
	if !request.Reverse {
		after := request.GetOffset()
		if after >= res.head {
			return true
		}
		if !t.covers(max(after, res.floor-1), res.head) {
			return false
		}
		res.events, res.more = t.after(max(after, res.floor-1), limit, maxHistoryBytes)
		return true
	}
	end := res.head // last wanted
	if request.Offset != nil {
		end = min(end, max(*request.Offset, 1)-1)
	}
	if end < res.floor {
		return true
	}
	from := res.floor
	if end-from+1 > uint64(limit) {
		from = end - uint64(limit) + 1
	}
	if len(t.events) == 0 || from < t.first {
		return false
	}
	size := 0
	for offset := end; offset >= from; offset-- {
		e := t.events[offset-t.first]
		if size += len(e.Data) + len(e.Meta); size > maxHistoryBytes && offset < end {
			res.more = true
			return true
		}
		res.events = append(res.events, e)
	}
	res.more = from > res.floor
	return true
}

// volatileHistory answers from the owner's memory.
func (s historyService) volatileHistory(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *Namespace, limit int) (*routerv1.ReadHistoryResponse, error) {
	if s.awaitTurn(ctx, request.Channel, ns) != turnServe {
		return s.forwardHistory(ctx, request)
	}
	shard := s.table.lock(request.Channel)
	ch := s.table.getLocked(shard, request.Channel, ns)
	ok := s.sequencer.volatileLocked(ch, 0) == turnServe
	res := readResult{epoch: ch.epoch, head: ch.head, floor: ch.head + 1}
	if len(ch.tail.events) > 0 {
		res.floor = ch.tail.first
	}
	if ok {
		ok = pageFromTail(&ch.tail, request, limit, &res)
	}
	shard.mu.Unlock()
	if !ok {
		return nil, statusOf(notOwner)
	}
	return historyResponse(request, res)
}

// awaitTurn waits for a channel that may be handed to us; turnPass: it is another's.
func (s historyService) awaitTurn(ctx context.Context, name string, ns *Namespace) turn {
	for {
		shard := s.table.lock(name)
		if shard.channels[name] == nil && !s.own.owned(name) {
			shard.mu.Unlock()
			return turnPass
		}
		ch := s.table.getLocked(shard, name, ns)
		turn := s.hand.turnLocked(ch)
		released := make(chan struct{})
		if turn == turnWait {
			ch.waiters = append(ch.waiters, func() { close(released) })
		}
		shard.mu.Unlock()
		if turn != turnWait {
			return turn
		}
		select {
		case <-released:
		case <-ctx.Done():
			return turnPass
		}
	}
}

func (s historyService) forwardHistory(ctx context.Context, request *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(forwardedHeader)) > 0 {
		return nil, statusOf(result{code: codes.Unavailable, message: "the channel is moving to another router", retryAfter: 200 * time.Millisecond})
	}
	owner := s.own.owner(request.Channel)
	if owner == nil || owner.Id == s.cfg.ID {
		return nil, statusOf(result{code: codes.Unavailable, message: "no router owns the channel", retryAfter: time.Second})
	}
	conn, err := s.peers.Conn(owner)
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the channel's router cannot be reached")
	}
	return routerv1.NewHistoryServiceClient(conn).ReadHistory(metadata.AppendToOutgoingContext(ctx, forwardedHeader, "1"), request)
}

func historyResponse(request *routerv1.ReadHistoryRequest, res readResult) (*routerv1.ReadHistoryResponse, error) {
	if epoch := wire.FormatEpoch(res.epoch); request.Epoch != "" && request.Epoch != epoch {
		return nil, status.Errorf(codes.FailedPrecondition, "epoch: the channel is in another run, %s", epoch)
	}
	response := &routerv1.ReadHistoryResponse{
		Channel: request.Channel, Epoch: wire.FormatEpoch(res.epoch), Head: res.head, First: res.floor, More: res.more,
		Events: make([]*routerv1.HistoryEvent, len(res.events)),
	}
	for i, e := range res.events {
		response.Events[i] = historyEvent(e)
	}
	return response, nil
}

func historyEvent(e *gatewayv1.BusEvent) *routerv1.HistoryEvent {
	h := &routerv1.HistoryEvent{Offset: e.Offset, TimeMs: e.TimeMs, From: e.From}
	if e.Binary {
		h.Data = &routerv1.HistoryEvent_Binary{Binary: e.Data}
	} else {
		h.Data = &routerv1.HistoryEvent_Json{Json: string(e.Data)}
	}
	if len(e.Meta) > 0 {
		_ = json.Unmarshal(e.Meta, &h.Meta) // made by wire.MetaJSON
	}
	return h
}
