package loadgen

// timer says when a client's machine is to be woken.
type timer struct {
	due    int64 // loop time
	heapAt int   // in loop.timers; -1: not armed
	client *client
}

// timers is a heap of timers by due; each is in it at most once. (container/heap
// would cost an interface call for each comparison.)
type timers []*timer

// set arms or moves a timer.
func (t *timers) set(c *timer, due int64) {
	c.due = due
	if c.heapAt < 0 {
		c.heapAt = len(*t)
		*t = append(*t, c)
	}
	t.down(c.heapAt)
	t.up(c.heapAt)
}

// clear disarms.
func (t *timers) clear(c *timer) {
	i := c.heapAt
	if i < 0 {
		return
	}
	last := len(*t) - 1
	t.swap(i, last)
	*t = (*t)[:last]
	c.heapAt = -1
	if i < last {
		t.down(i)
		t.up(i)
	}
}

// next is the first due time, -1 if there is none.
func (t timers) next() int64 {
	if len(t) == 0 {
		return -1
	}
	return t[0].due
}

func (t timers) swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].heapAt, t[j].heapAt = i, j
}

func (t timers) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if t[parent].due <= t[i].due {
			return
		}
		t.swap(i, parent)
		i = parent
	}
}

func (t timers) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(t) {
			return
		}
		if r := least + 1; r < len(t) && t[r].due < t[least].due {
			least = r
		}
		if t[i].due <= t[least].due {
			return
		}
		t.swap(i, least)
		i = least
	}
}
