package views

import (
	"time"

	"github.com/spillway-io/spillway/presence"
)

// Trust is the moment at which a channel's position was known to be the truth: it
// stays the truth while the channel is ours without a break. The zero value: never.
type Trust struct {
	Seq    uint64 // of the view
	Breaks uint64
}

// Picture is what a router sees at one moment. It never changes.
type Picture struct {
	At time.Time // when it was taken

	cfg         *Config
	incarnation uint64
	views       []view // oldest first, the last one in force
	breaks      uint64
	departed    time.Time // since when this router leaves; zero: it stays
}

// Self is the id of this router.
func (p *Picture) Self() string { return p.cfg.Self }

// Trust is what a read that starts now will earn.
func (p *Picture) Trust() Trust { return Trust{Seq: p.last().seq, Breaks: p.breaks} }

// Revision is that of the view in force, in the membership's own count. A router that
// leaves sees one more: it knows more than the view does.
func (p *Picture) Revision() uint64 {
	if p.Leaving() {
		return p.last().revision() + 1
	}
	return p.last().revision()
}

// Leaving says that this router gives all its channels away.
func (p *Picture) Leaving() bool { return !p.departed.IsZero() }

// Company says that there are other routers, in whatever state.
func (p *Picture) Company() bool { return len(others(p.last().snapshot, p.cfg.Self)) > 0 }

// Owner is the id of the router that owns a channel, and since when that is so at the
// earliest; "": no router serves, or the one that does is a dead one of our own name.
func (p *Picture) Owner(channel string) (id string, since time.Time) {
	last := p.last()
	owner := last.snapshot.Owner(channel)
	since = last.since
	switch {
	case owner == nil || owner.Id != p.cfg.Self:
	case !p.mine(last.snapshot, channel):
		owner = nil // our own record comes soon
	case p.Leaving():
		owner, since = second(last.snapshot, p.cfg.Self, channel), p.departed
	}
	if owner == nil {
		return "", since
	}
	return owner.Id, since
}

// second is who owns a channel without one of the routers.
func second(s *presence.Snapshot, without, channel string) *presence.Member {
	for _, m := range s.Ranked(channel) {
		if m.Id != without {
			return m
		}
	}
	return nil
}

// Trusted says that what was known at t may be answered from memory. vouched is the
// revision of the last hand that brought the channel with the truth; 0: none did.
func (p *Picture) Trusted(channel string, t Trust, vouched uint64) bool {
	last := len(p.views) - 1
	return p.kept(t) && p.ours(last, channel, t, vouched) && !p.contested(last, channel, vouched)
}

// TrustedUntilLost says the same of a channel that another owns by now and that this
// router has numbered since: it was trusted in the last view that gave it to us.
func (p *Picture) TrustedUntilLost(channel string, t Trust, vouched uint64) bool {
	last := len(p.views) - 1
	for last > 0 && !p.mine(p.views[last].snapshot, channel) && p.views[last].revision() >= vouched {
		last--
	}
	return p.kept(t) && p.ours(last, channel, t, vouched) && !p.contested(last, channel, vouched)
}

// Doubt says that another router may have a channel that is ours by the last view. A
// router that holds it since t doubts if it was not ours all the time, by the views that
// are not older than the revision of the hand that brought it. One that does not hold
// it doubts if the channel came to us of late.
func (p *Picture) Doubt(channel string, held bool, t Trust, handed uint64) bool {
	if held {
		if t == p.Trust() {
			return false
		}
		unbroken := t.Breaks == p.breaks && t.Seq != 0 && t.Seq >= p.views[0].seq && p.ours(len(p.views)-1, channel, t, handed)
		return !unbroken && p.Company()
	}
	edge := p.At.Add(-p.cfg.Window)
	for i := len(p.views) - 1; i > 0 && p.views[i].since.After(edge); i-- {
		if !p.mine(p.views[i-1].snapshot, channel) {
			return p.Company()
		}
	}
	return false
}

func (p *Picture) last() *view { return &p.views[len(p.views)-1] }

// mine: what the registry gives to one of our name that died, until its lease has run
// out or we are registered, is not ours. We do not know how far it came, and the
// view has no newer revision for the epochs of channels without a store.
func (p *Picture) mine(s *presence.Snapshot, channel string) bool {
	owner := s.Owner(channel)
	return owner != nil && owner.Id == p.cfg.Self && owner.Incarnation == p.incarnation
}

// kept says that no break came since t, and that the views since then are still known.
func (p *Picture) kept(t Trust) bool {
	return t.Seq != 0 && t.Breaks == p.breaks && t.Seq >= p.views[0].seq
}

// ours says that the channel was ours from t to the view at an index. Views older than
// the revision of a hand that brought it to us do not count.
func (p *Picture) ours(last int, channel string, t Trust, handed uint64) bool {
	for i := last; i >= 0 && p.views[i].seq >= t.Seq; i-- {
		if p.views[i].revision() >= handed && !p.mine(p.views[i].snapshot, channel) {
			return false
		}
	}
	return true
}

// contested says that another may still believe that it owns the channel: the owner
// changed less than Recheck ago, up to the view at an index, and did not hand it over.
func (p *Picture) contested(last int, channel string, vouched uint64) bool {
	edge := p.At.Add(-p.cfg.Recheck)
	for i := last; i > 0 && p.views[i].since.After(edge); i-- {
		if p.views[i].revision() > vouched && !p.mine(p.views[i-1].snapshot, channel) {
			return true
		}
	}
	return false
}
