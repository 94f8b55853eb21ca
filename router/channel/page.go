package channel

import (
	"time"

	"google.golang.org/grpc/codes"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// MaxPageBytes bounds the data of one page; More is then true.
const MaxPageBytes = 1 << 20

// PageQuery is a question of a backend: a page of a channel's history.
type PageQuery struct {
	Channel   string
	Namespace *namespace.Namespace
	Offset    *uint64 // forward: after it; reverse: before it; nil: from the beginning, or the end
	Limit     int     // most events, 1 to MaxPage
	Reverse   bool
	Deadline  time.Time // nobody waits for the answer after it
	Gone      func() bool
	Reply     func(PageResult) // called once, from any goroutine; must not block
}

// PageResult answers a PageQuery.
type PageResult struct {
	Result    Result // Code OK, or why there is no page
	Elsewhere bool   // another router has the channel: it is to be asked
	Epoch     uint64
	Head      uint64
	First     uint64 // oldest offset that history has; Head+1 if it has none
	Events    []*gatewayv1.BusEvent
	More      bool
}

var (
	pageUnread = Result{Code: codes.Unavailable, Message: "history cannot be read now", RetryAfter: time.Second}
	pageMoving = Result{Code: codes.Unavailable, Message: isMoving, RetryAfter: MovingRetry}
)

// Page answers from memory if that is trusted and has the whole page, else from the store.
func (c *Channel) Page(s *Step, q *PageQuery) { q.ask(c, s) }

func (q *PageQuery) ask(c *Channel, s *Step) {
	if c.rules.numberedBy == byMemory {
		q.askMemory(c, s)
		return
	}
	res, ok := q.fromTail(c, s)
	if ok {
		q.Reply(res)
		return
	}
	c.query(s, q.key(), Position{}, q.Deadline, q.Gone, q)
}

// askMemory answers about a channel without a store, where it is.
func (q *PageQuery) askMemory(c *Channel, s *Step) {
	if q.Gone() || !s.Now.Before(q.Deadline) {
		q.Reply(PageResult{Result: pageMoving})
		return
	}
	switch c.turn(s) {
	case Wait:
		c.waiting = append(c.waiting, q)
		return
	case Pass:
		q.Reply(PageResult{Elsewhere: true})
		return
	}
	c.begin(s, 0)
	res := PageResult{Epoch: c.epoch, Head: c.head, First: c.tail.firstOr(c.head + 1)}
	if !q.page(&c.tail, &res) {
		res = PageResult{Result: pageMoving}
	}
	q.Reply(res)
}

// read answers after the store was asked.
func (q *PageQuery) read(_ *Channel, _ *Step, res *ReadResult) {
	if res.Err != ReadDone {
		q.Reply(PageResult{Result: pageUnread})
		return
	}
	q.Reply(PageResult{Epoch: res.Epoch, Head: res.Head, First: res.Floor, Events: res.Events, More: res.More})
}

// key is what is read of the store. `Before 0` there means "from the newest", so what is
// before offset 1 needs its own word: nothing but the head.
func (q *PageQuery) key() ReadKey {
	key := ReadKey{Channel: q.Channel, Limit: q.Limit, MaxBytes: MaxPageBytes, Reverse: q.Reverse}
	switch {
	case !q.Reverse && q.Offset != nil:
		key.After = *q.Offset
	case !q.Reverse || q.Offset == nil:
	case *q.Offset <= 1:
		return ReadKey{Channel: q.Channel, Head: true}
	default:
		key.Before = *q.Offset
	}
	return key
}

func (q *PageQuery) fromTail(c *Channel, s *Step) (PageResult, bool) {
	if !c.known || c.floor == 0 || len(c.tail.events) == 0 || s.Now.Before(c.late) || !s.Look.Trusted(c.name, c.trust, c.vouched) {
		return PageResult{}, false
	}
	floor := c.floor
	if size := uint64(c.ns.HistorySize); size > 0 && c.head > size {
		floor = max(floor, c.head-size+1)
	}
	res := PageResult{Epoch: c.epoch, Head: c.head, First: floor}
	ok := q.page(&c.tail, &res)
	return res, ok
}

// page fills in the events; false: the tail does not have all of them.
func (q *PageQuery) page(t *tail, res *PageResult) bool {
	if q.Reverse {
		return q.pageBack(t, res)
	}
	after := uint64(0)
	if q.Offset != nil {
		after = *q.Offset
	}
	if after >= res.Head {
		return true
	}
	after = max(after, res.First-1)
	if !t.covers(after, res.Head) {
		return false
	}
	res.Events, res.More = t.after(after, q.Limit, MaxPageBytes)
	return true
}

func (q *PageQuery) pageBack(t *tail, res *PageResult) bool {
	end := res.Head // last wanted
	if q.Offset != nil {
		end = min(end, max(*q.Offset, 1)-1)
	}
	if end < res.First {
		return true
	}
	from := res.First
	if end-from+1 > uint64(q.Limit) {
		from = end - uint64(q.Limit) + 1
	}
	if len(t.events) == 0 || from < t.first {
		return false
	}
	size := 0
	for offset := end; offset >= from; offset-- {
		e := t.events[offset-t.first]
		if size += len(e.Data) + len(e.Meta); size > MaxPageBytes && offset < end {
			res.More = true
			return true
		}
		res.Events = append(res.Events, e)
	}
	res.More = from > res.First
	return true
}
