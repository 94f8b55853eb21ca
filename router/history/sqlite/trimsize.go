package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/router/history"
)

const (
	walkPage = 1_000 // channels looked at in one read transaction of a walk
	scanPage = 1_000 // places of the log looked at in one
	// noteEvery is after how many pages without anything to delete what was looked
	// at is noted in the file: what a call that is cut short has to do again.
	noteEvery = 100
)

// look is how far retention by size has come.
//
//	walked >= 0   the rules are new: every channel is looked at, in the order of
//	              ids; those up to walked have been
//	walked <  0   all have been: only what the log names behind scanned is new
type look struct {
	rules   string
	walked  int64
	scanned int64
	top     int64 // the last place of the log
}

// sizes are the rules as they stand in the file; "" if no rule has a size.
func sizes(rules map[string]history.Retention) string {
	var lines []string
	for name, rule := range rules {
		if rule.Size > 0 {
			lines = append(lines, fmt.Sprintf("%q %d", name, rule.Size))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// trimBySize cuts the channels that have more than they may. A page of them is
// done when all of it has been cut, so a limit costs at most one page twice.
func (s *Store) trimBySize(ctx context.Context, rules map[string]history.Retention, limit int) (int, error) {
	want := sizes(rules)
	if want == "" {
		return 0, nil
	}
	at, err := s.lookAt(ctx, want)
	if err != nil {
		return 0, err
	}
	noted, gone := at, 0
	for pages := 1; ; pages++ {
		next, cuts, err := s.lookOn(ctx, at, rules)
		if err != nil {
			return gone, err
		}
		n, err := s.cutAll(ctx, cuts, limit-gone)
		gone += n
		if err != nil {
			return gone, err
		}
		done := next == at
		if gone < limit {
			at = next
		}
		if at != noted && (done || gone >= limit || pages%noteEvery == 0) {
			if err := s.note(ctx, at); err != nil {
				return gone, err
			}
			noted = at
		}
		if done || gone >= limit {
			return gone, nil
		}
	}
}

// lookAt reads how far the rules have come; new ones begin with a walk.
func (s *Store) lookAt(ctx context.Context, want string) (look, error) {
	var at look
	err := s.read(ctx, func(r *reader) (err error) {
		at, err = r.look()
		return err
	})
	if err != nil || at.rules == want {
		return at, err
	}
	err = s.write(ctx, func(w *writer) (err error) {
		if at, err = w.look(); err != nil || at.rules == want {
			return err
		}
		at = look{rules: want, scanned: at.top, top: at.top}
		_, err = w.trimmer.reset.run(at.rules, at.scanned)
		return err
	})
	return at, err
}

func (r *reader) look() (look, error) {
	v, err := r.looked.one()
	if err != nil {
		return look{}, err
	}
	return look{rules: v[0].(string), walked: v[1].(int64), scanned: v[2].(int64), top: v[3].(int64)}, nil
}

func (s *Store) note(ctx context.Context, at look) error {
	return s.write(ctx, func(w *writer) error {
		_, err := w.trimmer.looked.run(at.walked, at.scanned, at.rules)
		return err
	})
}

// lookOn looks at one page more: where that ends (at itself: nothing is left) and
// which channels of it have too much.
func (s *Store) lookOn(ctx context.Context, at look, rules map[string]history.Retention) (look, []cut, error) {
	var cuts []cut
	err := s.read(ctx, func(r *reader) error {
		found := func(v []value) { // id, namespace, head, first
			size := int64(rules[v[1].(string)].Size)
			if size > 0 && v[2].(int64)-v[3].(int64) >= size {
				cuts = append(cuts, cut{id: v[0].(int64), size: size, cutoffMS: noCutoff})
			}
		}
		if at.walked >= 0 {
			n := 0
			err := r.walk.each(func(v []value) bool {
				at.walked = v[0].(int64)
				n++
				found(v)
				return true
			}, at.walked, int64(walkPage))
			if n < walkPage {
				at.walked = -1
			}
			return err
		}
		top, err := number(r.newest)
		if err != nil || top <= at.scanned {
			return err
		}
		seen := make(map[int64]bool)
		end := min(top, at.scanned+scanPage)
		if err := r.scan.each(func(v []value) bool {
			seen[v[0].(int64)] = true
			return true
		}, at.scanned, end); err != nil {
			return err
		}
		at.scanned = end
		for id := range seen {
			v, err := r.sized.one(id)
			if err != nil {
				return err
			}
			if v != nil {
				found(v)
			}
		}
		return nil
	})
	return at, cuts, err
}
