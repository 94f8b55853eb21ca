package router

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
)

// History of channels that are written behind: memory has the newest events, the store
// those up to what is written, and both together have no hole. Where they have one,
// or where the store has not told what it has, a page that is not all in memory waits
// (UNAVAILABLE): it would hide events.

var unreadable = result{code: codes.Unavailable, message: "history cannot be read now", retryAfter: time.Second}

// asyncHistory answers from the owner's memory as far as that has the page's first
// event, else from the store; the page after it goes on with the other.
func (s historyService) asyncHistory(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *Namespace, limit int) (*routerv1.ReadHistoryResponse, error) {
	if s.awaitTurn(ctx, request.Channel, ns) != turnServe {
		return s.forwardHistory(ctx, request)
	}
	var row *history.Head
	if !s.asyncKnown(request.Channel) && !s.sequencer.behind.storeAway() {
		if head, err := s.readOne(ctx, readKey{channel: request.Channel, head: true}, ns); err == nil {
			row = head.row()
		}
	}
	page, err := s.asyncPage(request, ns, limit, row)
	switch {
	case err != nil:
		return nil, err
	case page.has && (page.bounded || s.sequencer.behind.storeAway()):
		return historyResponse(request, page.readResult)
	}
	stored, err := s.historyFromStore(ctx, request, ns, limit)
	switch {
	case err != nil && page.has:
		return historyResponse(request, page.readResult)
	case err != nil:
		return nil, err
	}
	res, err := s.asyncJoined(request, limit, page.known, &stored)
	if err != nil {
		return nil, err
	}
	return historyResponse(request, res)
}

func (s historyService) asyncKnown(channel string) bool {
	shard := s.table.lock(channel)
	defer shard.mu.Unlock()
	ch := shard.channels[channel]
	return ch != nil && (s.sequencer.asyncReadyLocked(ch) || ch.unwrittenLocked() > 0)
}

// asyncPage is what memory has of a page.
type asyncPage struct {
	readResult
	has     bool  // all of it
	bounded bool  // floor is that of the store; else it is that of memory
	known   point // what the store has, as far as it is known here
}

// asyncPage answers from memory. Row is the store's, nil if it did not tell.
func (s historyService) asyncPage(request *routerv1.ReadHistoryRequest, ns *Namespace, limit int, row *history.Head) (page asyncPage, err error) {
	shard := s.table.lock(request.Channel)
	defer shard.mu.Unlock()
	ch := s.table.getLocked(shard, request.Channel, ns)
	if s.sequencer.asyncLocked(ch, row, 0) != turnServe {
		return page, statusOf(notOwner)
	}
	page.readResult = readResult{epoch: ch.epoch, head: ch.head}
	if ch.blindLocked() && !ofEpoch(request, ch.epoch) {
		return page, statusOf(unreadable)
	}
	page.known = ch.storedLocked()
	floor := ch.floor
	if floor > 0 && !ch.holeLocked() {
		page.bounded = true
		if size := uint64(ns.HistorySize); size > 0 && ch.head > size {
			floor = max(floor, ch.head-size+1)
		}
		page.floor = floor
	} else {
		page.floor = ch.tail.firstOr(ch.head + 1)
	}
	if page.has = page.fromTail(&ch.tail, request, limit, max(floor, 1)); !page.has && ch.holeLocked() {
		return page, statusOf(unreadable)
	}
	return page, nil
}

// ofEpoch says that a request goes on in an epoch that its caller knows.
func ofEpoch(request *routerv1.ReadHistoryRequest, epoch uint64) bool {
	return request.Epoch == wire.FormatEpoch(epoch)
}

// fromTail fills in a page of a history that begins at floor; false: the tail does not
// have its first event.
func (res *readResult) fromTail(t *tail, request *routerv1.ReadHistoryRequest, limit int, floor uint64) bool {
	first := t.firstOr(res.head + 1)
	if !request.Reverse {
		if request.GetOffset() >= res.head { // also of what has no successor
			return true
		}
		from := max(request.GetOffset()+1, floor)
		if from > res.head {
			return true
		}
		if from < first {
			return false
		}
		res.events, res.more = t.after(from-1, limit, maxHistoryBytes)
		return true
	}
	end := res.lastOf(request)
	if end < floor {
		return true
	}
	if end < first {
		return false
	}
	part := readResult{head: res.head, floor: max(first, floor)}
	pageFromTail(t, request, limit, &part)
	res.events, res.more = part.events, part.more || part.floor > floor
	return true
}

// lastOf is the first event of a page in reverse.
func (res *readResult) lastOf(request *routerv1.ReadHistoryRequest) uint64 {
	if request.Offset == nil {
		return res.head
	}
	return min(res.head, max(*request.Offset, 1)-1)
}

// asyncJoined puts the page that the store has and what is in memory by now together.
// known is what the store had before it was asked.
func (s historyService) asyncJoined(request *routerv1.ReadHistoryRequest, limit int, known point, stored *readResult) (res readResult, err error) {
	shard := s.table.lock(request.Channel)
	defer shard.mu.Unlock()
	ch := shard.channels[request.Channel]
	if ch == nil || !s.sequencer.asyncReadyLocked(ch) || ch.epoch != known.epoch {
		return res, statusOf(result{code: codes.Unavailable, message: "the channel is moving to another router", retryAfter: movingRetry})
	}
	if s.sequencer.doubtLocked(ch, known, point{stored.epoch, stored.head}) || ch.holeLocked() {
		return res, statusOf(unreadable)
	}
	ch.floor = min(stored.floor, ch.head+1)
	res = readResult{epoch: ch.epoch, head: ch.head, floor: ch.floor}
	if res.fromTail(&ch.tail, request, limit, res.floor) {
		return res, nil
	}
	res.events = stored.events
	at := max(request.GetOffset()+1, res.floor)
	if request.Reverse {
		at = res.lastOf(request)
		for len(res.events) > 0 && res.events[0].Offset > at {
			res.events = res.events[1:] // the store has more by now than the tail lacks
		}
	} else {
		for n := len(res.events); n > 0 && res.events[n-1].Offset > ch.async.written; n = len(res.events) {
			res.events = res.events[:n-1] // another's
		}
	}
	if len(res.events) == 0 || res.events[0].Offset != at {
		return res, statusOf(unreadable) // retention came between
	}
	last := res.events[len(res.events)-1].Offset
	res.more = last < res.head
	if request.Reverse {
		res.more = last > res.floor
	}
	return res, nil
}
