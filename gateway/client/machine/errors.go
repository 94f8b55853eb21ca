package machine

import (
	"errors"
	"fmt"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

var (
	// ErrClosed: Close was called.
	ErrClosed = errors.New("client is closed")
	// ErrNotConnected: the client is DISCONNECTED, and nothing is under way that
	// would change it.
	ErrNotConnected = errors.New("client is not connected")
	// ErrNoToken is what a token provider returns to say that there will be none: it
	// ends the client.
	ErrNoToken = errors.New("no token")
	// ErrOutcomeUnknown: the connection ended after a publish without key was sent and
	// before it was answered.
	ErrOutcomeUnknown = errors.New("outcome unknown: the connection ended before the answer")
	// ErrSubscribed: the channel has a subscription already.
	ErrSubscribed = errors.New("channel is subscribed already")
	// ErrUnsubscribed: the application ended the subscription.
	ErrUnsubscribed = errors.New("unsubscribed")
	// ErrTooManyCalls: 10,000 calls wait for an answer.
	ErrTooManyCalls = errors.New("too many calls at a time")
)

// Error is what a server answered instead of a result.
type Error struct {
	Code       string // a word: bad_request, unauthorized, expired, revoked, forbidden, not_found, too_large, rate_limited, unavailable, internal
	Message    string
	Temporary  bool
	RetryAfter time.Duration // 0: not told
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

func newError(e *clientv1.Error) *Error {
	return &Error{
		Code: wire.ErrorWord(e.Code), Message: e.Message, Temporary: e.Temporary,
		RetryAfter: millis(e.GetRetryAfterMs()),
	}
}

// CloseError says how a connection ended: by the last frame that told so, else by
// the close code.
type CloseError struct {
	Code   wire.CloseCode // 1006: without a close frame
	Reason string
}

func (e *CloseError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("connection closed: %v", e.Code)
	}
	return fmt.Sprintf("connection closed: %v: %s", e.Code, e.Reason)
}

func millis[N uint32 | uint64](n N) time.Duration {
	const most = uint64(1 << 43) // some 280 years: a Duration holds it
	return time.Duration(min(uint64(n), most)) * time.Millisecond
}
