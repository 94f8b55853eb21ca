package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// MaxPage is the most events of one answer.
const MaxPage = 1000

// Question is an ask of an edge that may be answered.
type Question struct {
	Ask       *gatewayv1.Ask
	Namespace *namespace.Namespace
	MaxBytes  int       // most data of the answer
	Deadline  time.Time // nobody waits for the answer after it
	Gone      func() bool
	Reply     func(*gatewayv1.Answer) // called once, from any goroutine; must not block
}

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
