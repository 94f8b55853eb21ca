package admission

import "time"

// waiter is a client in the waiting room. It is in one list and in Gate.waiters.
type waiter struct {
	arrival  Arrival
	lane     Lane
	grant    *grant // reserved for it; nil: none
	pass     bool   // has a good one: served before newcomers
	deadline time.Time

	list       *list
	prev, next *waiter
}

// list is first in, first out, and anybody can leave it: who hangs up costs nothing
// to those behind.
type list struct {
	first, last *waiter
	n           int
}

func (l *list) push(w *waiter) {
	w.list, w.prev, w.next = l, l.last, nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.n++
}

// pushFirst lets w pass all who wait.
func (l *list) pushFirst(w *waiter) {
	w.list, w.prev, w.next = l, nil, l.first
	if l.first == nil {
		l.last = w
	} else {
		l.first.prev = w
	}
	l.first = w
	l.n++
}

func (l *list) remove(w *waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.list, w.prev, w.next = nil, nil, nil
	l.n--
}
