package feed

import (
	"container/heap"
	"time"
)

// timers are the feeds that want a tick, soonest first. Quiet channels are not
// in it.
type timers []*feed

// set files f for a time, moves it, or (zero) takes it out.
func (t *timers) set(f *feed, at time.Time) {
	w := f.work
	switch {
	case w == nil:
	case at.IsZero() && w.heapIndex >= 0:
		heap.Remove((*timerHeap)(t), w.heapIndex)
		w.at = at
	case at.IsZero():
	case w.heapIndex < 0:
		w.at = at
		heap.Push((*timerHeap)(t), f)
	case !at.Equal(w.at):
		w.at = at
		heap.Fix((*timerHeap)(t), w.heapIndex)
	}
}

// next is the time of the soonest; zero: none.
func (t timers) next() time.Time {
	if len(t) == 0 {
		return time.Time{}
	}
	return t[0].work.at
}

type timerHeap []*feed

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].work.at.Before(h[j].work.at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].work.heapIndex, h[j].work.heapIndex = i, j
}

func (h *timerHeap) Push(x any) {
	f := x.(*feed)
	f.work.heapIndex = len(*h)
	*h = append(*h, f)
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	f.work.heapIndex = -1
	return f
}
