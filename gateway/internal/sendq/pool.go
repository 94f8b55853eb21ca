package sendq

// maxFree bounds the spare items of a pool: 1 MiB. A fan-out to more conns than
// that in one turn allocates.
const maxFree = 16 << 10

// Pool gives the queues of one loop their limits and their items, so that pushing
// and flushing allocate nothing once it is warm, and an empty queue holds nothing.
type Pool struct {
	limits Limits
	free   *item
	nFree  int
}

// NewPool returns a pool whose queues have these limits, which must be valid.
func NewPool(limits Limits) *Pool {
	if err := limits.Validate(); err != nil {
		panic("sendq: " + err.Error())
	}
	return &Pool{limits: limits}
}

// Queue returns an empty queue.
func (p *Pool) Queue() Queue { return Queue{pool: p} }

func (p *Pool) get() *item {
	it := p.free
	if it == nil {
		return new(item)
	}
	p.free, it.next = it.next, nil
	p.nFree--
	return it
}

func (p *Pool) put(it *item) {
	*it = item{} // the frame may be the last that holds a large buffer
	if p.nFree < maxFree {
		it.next, p.free = p.free, it
		p.nFree++
	}
}
