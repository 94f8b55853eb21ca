package admission

import "time"

// waiter is a client in the waiting room. It is in one list and in Gate.waiters.
type waiter struct {
	arrival  Arrival
	lane     Lane
	grant    *grant // reserved for it; nil: none
	pass     bool   // has a good one: served before newcomers
	mark     uint64 // of the ticket that it uses, pass or moved; 0: none
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

// insert puts w among those who wait, by its deadline.
func (l *list) insert(w *waiter) {
	before := l.last
	for before != nil && before.deadline.After(w.deadline) {
		before = before.prev
	}
	if before == l.last {
		l.push(w)
		return
	}
	w.list, w.prev = l, before
	if before == nil {
		w.next, l.first = l.first, w
	} else {
		w.next, before.next = before.next, w
	}
	w.next.prev = w
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
