package gateway

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// request is a connect or subscribe command whose reply waits for the verdicts
// of its channels, VerdictWait at most: what is not there yet is told as pending
// and follows as a push. Owned by the loop.
type request struct {
	c        *conn
	id       uint32
	connect  bool
	single   bool
	answered bool
	entries  []*clientv1.SubscriptionEntry // in the order of the command
	subs     []*subscription               // beside entries; nil: refused on the spot
	waiting  int                           // entries without a verdict
	deadline time.Time
}

// add appends an entry that is already decided.
func (r *request) add(e *clientv1.SubscriptionEntry) {
	r.entries = append(r.entries, e)
	r.subs = append(r.subs, nil)
}

// await appends a subscription whose verdict will come.
func (r *request) await(s *subscription) {
	s.req = r
	r.entries = append(r.entries, nil)
	r.subs = append(r.subs, s)
	r.waiting++
}

// verdict files the entry of s and answers the command if it was the last.
func (r *request) verdict(s *subscription, e *clientv1.SubscriptionEntry) {
	for i, waiting := range r.subs {
		if waiting == s && r.entries[i] == nil {
			r.entries[i] = e
			r.waiting--
			break
		}
	}
	if r.waiting == 0 {
		r.answer()
	}
}

// answer sends the reply and then what was held behind it, in order.
func (r *request) answer() {
	if r.answered {
		return
	}
	r.answered = true
	for i, e := range r.entries {
		if e == nil {
			r.entries[i] = &clientv1.SubscriptionEntry{Channel: r.subs[i].channel.name, Pending: true}
		}
	}
	if r.connect {
		commands{r.c}.sendConnected(r.id, r.entries)
	} else {
		r.c.send(&clientv1.ServerFrame{Id: r.id, Frame: &clientv1.ServerFrame_Subscribed{
			Subscribed: &clientv1.Subscribed{Subscriptions: r.entries, Single: r.single},
		}})
	}
	for _, s := range r.subs {
		if s == nil || s.req != r {
			continue
		}
		s.req = nil
		held := s.held
		s.held = nil
		fits := true
		for _, f := range held {
			r.c.heldBytes -= len(f.Text)
			fits = fits && (r.c.pushEvent(s, f) || !s.history)
		}
	}
	r.c.catchUp() // those that fell behind while they were held
}

// watch starts the clock of a request that is not answered yet.
func (l *loop) watch(r *request) {
	if r.waiting == 0 {
		r.answer()
		return
	}
	r.deadline = l.now.Add(l.edge.cfg.VerdictWait)
	l.requests = append(l.requests, r)
}

// answerLate answers the requests whose time is up and forgets the answered.
func (l *loop) answerLate() {
	n := 0
	for _, r := range l.requests {
		if !r.answered && !r.c.closed && l.now.Before(r.deadline) {
			break
		}
		if !r.c.closed {
			r.answer()
		}
		n++
	}
	if n > 0 {
		clear(l.requests[:n])
		l.requests = l.requests[n:]
	}
	if len(l.requests) == 0 {
		l.requests = nil
	}
}
