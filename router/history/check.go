package history

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// MaxOffset is the last offset of an epoch: the largest integer that a JSON
// number carries exactly everywhere.
const MaxOffset = 1<<53 - 1

// CheckRuns refuses what would break an invariant if it were stored: a run
// without events, or with offsets that do not follow its head. Every Store
// calls it first, so that no bug of a caller can make a hole. It does not look
// at keys (the store's constraint does) nor at the channel being asked twice:
// of two runs for one channel at most one is stored.
func CheckRuns(runs []Run) error {
	for i := range runs {
		if err := runs[i].check(); err != nil {
			return &RefusedError{Err: err}
		}
	}
	return nil
}

func (r *Run) check() error {
	if r.Channel == "" || len(r.Events) == 0 {
		return fmt.Errorf("run of channel %q with %d events", r.Channel, len(r.Events))
	}
	if r.Head > MaxOffset || uint64(len(r.Events)) > MaxOffset-r.Head {
		return fmt.Errorf("channel %q: head %d and %d events pass the last offset %d", r.Channel, r.Head, len(r.Events), uint64(MaxOffset))
	}
	for i := range r.Events {
		if want := r.Head + 1 + uint64(i); r.Events[i].Offset != want {
			return fmt.Errorf("channel %q: event %d has offset %d, want %d", r.Channel, i, r.Events[i].Offset, want)
		}
	}
	return nil
}

// MaxEpoch is the last epoch: what the stores' columns hold, with room above it
// for the next of a sequence.
const MaxEpoch = 1<<62 - 1

// CheckRenewals tells a caller's mistake from a row that says otherwise.
func CheckRenewals(renewals []Renewal) error {
	for _, r := range renewals {
		switch {
		case r.Channel == "":
			return errors.New("renew: a channel without a name")
		case r.New != 0 && r.New <= r.Epoch:
			return fmt.Errorf("renew channel %q: epoch %d does not follow %d", r.Channel, r.New, r.Epoch)
		case r.Floor > MaxEpoch || r.New > MaxEpoch:
			return fmt.Errorf("renew channel %q: floor %d, new epoch %d, at most %d is allowed", r.Channel, r.Floor, r.New, uint64(MaxEpoch))
		}
	}
	return nil
}

// NewHead is the head of the channel once the run is stored.
func (r *Run) NewHead() uint64 { return r.Head + uint64(len(r.Events)) }

// CheckRanges tells a caller's mistake from an empty answer.
func CheckRanges(ranges []Range) error {
	for _, r := range ranges {
		if r.Limit <= 0 {
			return fmt.Errorf("read channel %q: limit %d, want > 0", r.Channel, r.Limit)
		}
		if r.MaxBytes < 0 {
			return fmt.Errorf("read channel %q: max bytes %d, want >= 0", r.Channel, r.MaxBytes)
		}
	}
	return nil
}

// CheckTrim tells a caller's mistake from a history without events.
func CheckTrim(rules []Retention, limit int) error {
	if limit <= 0 {
		return errors.New("trim: limit must be > 0")
	}
	for _, r := range rules {
		if r.Size < 0 || r.TTL < 0 {
			return fmt.Errorf("trim: namespace %q has a negative size or TTL", r.Namespace)
		}
	}
	return nil
}

// KeepSlack is how much older than the last use of an idle channel the note of it
// may be, besides how seldom Keep is called: most calls then write nothing.
const KeepSlack = time.Hour

// MaxForgotten is the last epoch that may go with its row: the sequence follows it,
// and needs room above itself.
const MaxForgotten = MaxEpoch / 2

// CheckForget tells a caller's mistake from a history in which all is in use.
func CheckForget(idle time.Duration, limit int) error {
	if idle < time.Millisecond || limit <= 0 {
		return fmt.Errorf("forget: idle %v, limit %d, want at least 1 ms and 1", idle, limit)
	}
	return nil
}

// Namespace is the part of a channel's name before its first colon, or "".
func Namespace(channel string) string {
	namespace, _, found := strings.Cut(channel, ":")
	if !found {
		return ""
	}
	return namespace
}

// Signed is offset or epoch n as the stores' 64-bit signed columns hold it; what
// no row can have becomes the largest value, which no row has.
func Signed(n uint64) int64 {
	return int64(min(n, math.MaxInt64))
}

// Size is what the event counts against Range.MaxBytes.
func (e *Event) Size() int { return len(e.Data) + len(e.Meta) }
