package sendq

// Writer is the part of poller.Conn that a flush needs. Write must not block or
// keep p; n < len(p) without an error means that no more fits.
type Writer interface {
	Write(p []byte) (n int, err error)
}

// MinScratch is the least useful capacity of a flush buffer.
const MinScratch = 4 << 10

// Flush writes what is queued, as few writes as it can: a write costs 4 to 5 us
// for one frame and little more for sixteen, and copying frames together is as
// good as writev. scratch is the loop's flush buffer, used up to its capacity
// (64 KiB is good); a frame that is alone, or fills half of scratch, is written
// from where it lies.
//
// It returns the bytes taken and nil once the queue is empty; or w's error: the
// temporary one of a socket without room (poller.ErrAgain), which leaves the rest
// queued, or one after which the conn is of no use.
func (q *Queue) Flush(w Writer, scratch []byte) (written int, err error) {
	for q.head != nil {
		b := q.next(scratch)
		n, err := w.Write(b)
		q.advance(n)
		written += n
		if err != nil {
			return written, err
		}
		if n == 0 {
			panic("sendq: Write took nothing and gave no error")
		}
		// A short write needs no second look: the next one says ErrAgain.
	}
	return written, nil
}

// next returns the bytes of the next write.
func (q *Queue) next(scratch []byte) []byte {
	first := q.head.frame[q.sent:]
	if q.items == 1 || len(first) > cap(scratch)/2 {
		return first
	}
	b := append(scratch[:0], first...)
	for it := q.head.next; it != nil && len(b)+len(it.frame) <= cap(scratch); it = it.next {
		b = append(b, it.frame...)
	}
	return b
}

// advance notes that n bytes were written.
func (q *Queue) advance(n int) {
	if n < 0 || n > int(q.bytes) {
		panic("sendq: Write took more than it was given")
	}
	q.bytes -= uint32(n)
	n += int(q.sent)
	for q.head != nil && n >= len(q.head.frame) {
		n -= len(q.head.frame)
		q.pop()
	}
	q.sent = uint32(n)
	q.check()
}
