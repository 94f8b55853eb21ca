package sendq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAgain = errors.New("no room")

// socket takes as much as room says, as a non-blocking one does.
type socket struct {
	room   int
	err    error // instead of errAgain
	got    []byte
	writes int
	where  []*byte // first byte of each write
}

func (s *socket) Write(p []byte) (int, error) {
	n := min(len(p), s.room)
	if n == 0 {
		if s.err != nil {
			return 0, s.err
		}
		return 0, errAgain
	}
	s.writes++
	s.where = append(s.where, &p[0])
	s.room -= n
	s.got = append(s.got, p[:n]...)
	return n, nil
}

var testLimits = Limits{MaxBytes: 100, MaxItems: 5, ReserveBytes: 20, ReserveItems: 2}

func newQueue() Queue { return NewPool(testLimits).Queue() }

func mustPush(t *testing.T, ok bool) {
	t.Helper()
	if !ok {
		t.Fatal("refused")
	}
}

func TestFramesQueuedTogetherAreOneWrite(t *testing.T) {
	q := newQueue()
	for i := range 4 {
		mustPush(t, q.PushEvent(fmt.Appendf(nil, "frame%d;", i), Tag{1, uint64(i)}))
	}
	s := &socket{room: 1000}
	n, err := q.Flush(s, make([]byte, 0, MinScratch))
	if n != 28 || err != nil || string(s.got) != "frame0;frame1;frame2;frame3;" || s.writes != 1 {
		t.Fatalf("%d, %v, %q in %d writes", n, err, s.got, s.writes)
	}
	if q.Len() != 0 || q.Bytes() != 0 || q.Events() != 0 || q.head != nil {
		t.Fatalf("left: %+v", q)
	}
	if n, err := q.Flush(s, nil); n != 0 || err != nil || s.writes != 1 {
		t.Fatalf("flush of nothing: %d, %v, %d writes", n, err, s.writes)
	}
}

func TestASharedFrameIsNeitherCopiedNorChanged(t *testing.T) {
	frame := []byte(strings.Repeat("x", 40))
	a, b := newQueue(), newQueue()
	for _, q := range []*Queue{&a, &b} {
		mustPush(t, q.Push(frame))
		s := &socket{room: 7}
		for q.Len() > 0 {
			if _, err := q.Flush(s, make([]byte, 0, MinScratch)); err != nil && err != errAgain {
				t.Fatal(err)
			}
			s.room = 7
		}
		if s.where[0] != &frame[0] || s.where[1] != &frame[7] || !bytes.Equal(s.got, frame) {
			t.Fatal("written from another place")
		}
	}
	if string(frame) != strings.Repeat("x", 40) {
		t.Fatal("changed")
	}
}

func TestLargeFramesAreWrittenFromWhereTheyLie(t *testing.T) {
	q := NewPool(DefaultLimits(256 << 10)).Queue()
	small, large := []byte("small"), bytes.Repeat([]byte("L"), 3000)
	for _, f := range [][]byte{small, large, small, small} {
		mustPush(t, q.Push(f))
	}
	s := &socket{room: 1 << 20}
	if _, err := q.Flush(s, make([]byte, 0, MinScratch)); err != nil {
		t.Fatal(err)
	}
	// small+large fit one buffer, and the rest too.
	if s.writes != 1 || len(s.got) != 3015 {
		t.Fatalf("%d writes, %d bytes", s.writes, len(s.got))
	}
	mustPush(t, q.Push(large))
	mustPush(t, q.Push(small))
	s = &socket{room: 1 << 20}
	if _, err := q.Flush(s, make([]byte, 0, MinScratch)); err != nil || s.where[0] != &large[0] || s.writes != 2 {
		t.Fatalf("%v, %d writes", err, s.writes)
	}
}

func TestFullQueueRefusesEventsAndKeepsAReserve(t *testing.T) {
	frame := make([]byte, 24)
	q := newQueue()
	for range 4 {
		mustPush(t, q.PushEvent(frame, Tag{1, 1}))
	}
	if q.PushEvent(frame, Tag{1, 2}) || q.Bytes() != 96 {
		t.Fatalf("%d bytes, want 96 and a refusal", q.Bytes())
	}
	mustPush(t, q.Push(frame[:20]))
	if q.Push(frame[:5]) {
		t.Fatal("the reserve has no end")
	}
	mustPush(t, q.Push(frame[:4]))

	q = newQueue()
	for range 5 {
		mustPush(t, q.PushEvent(frame[:1], Tag{1, 1}))
	}
	if q.PushEvent(frame[:1], Tag{1, 1}) {
		t.Fatal("a sixth item")
	}
	mustPush(t, q.Push(frame[:1]))
	mustPush(t, q.Push(frame[:1]))
	if q.Push(frame[:1]) {
		t.Fatal("an eighth item")
	}
}

func TestAnEventOfAnySizeFitsAnEmptyQueue(t *testing.T) {
	q := newQueue()
	mustPush(t, q.PushEvent(make([]byte, 500), Tag{1, 1}))
	if q.PushEvent([]byte("x"), Tag{1, 2}) || q.Push([]byte("x")) {
		t.Fatal("more fits behind it")
	}
	mustPush(t, q.Push(nil))
	if q.Len() != 1 {
		t.Fatal("an empty frame was queued")
	}
	q.Clear()
	if q.Len() != 0 || q.Bytes() != 0 {
		t.Fatalf("%+v", q)
	}
}

func TestDropEventsLeavesRepliesAndWhatIsUnderWay(t *testing.T) {
	q := newQueue()
	mustPush(t, q.PushEvent([]byte("event1"), Tag{1, 1}))
	mustPush(t, q.Push([]byte("reply1")))
	mustPush(t, q.PushEvent([]byte("event2"), Tag{1, 2}))
	mustPush(t, q.PushEvent([]byte("event3"), Tag{2, 9}))
	mustPush(t, q.Push([]byte("reply2")))
	s := &socket{room: 3}
	if n, err := q.Flush(s, make([]byte, 0, MinScratch)); n != 3 || err != errAgain {
		t.Fatalf("%d, %v", n, err)
	}
	var dropped []Tag
	n := q.DropEvents(func(tag Tag) { dropped = append(dropped, tag) })
	if n != 2 || !slices.Equal(dropped, []Tag{{1, 2}, {2, 9}}) || q.Events() != 1 || q.Len() != 3 {
		t.Fatalf("dropped %d: %v; left %d, %d of them events", n, dropped, q.Len(), q.Events())
	}
	mustPush(t, q.Push([]byte("gap")))
	s.room = 100
	if _, err := q.Flush(s, make([]byte, 0, MinScratch)); err != nil || string(s.got) != "event1reply1reply2gap" {
		t.Fatalf("%v, %q", err, s.got)
	}

	mustPush(t, q.PushEvent([]byte("a"), Tag{1, 3}))
	mustPush(t, q.PushEvent([]byte("b"), Tag{1, 4}))
	if n := q.DropEvents(nil); n != 2 || q.Len() != 0 || q.tail != nil {
		t.Fatalf("dropped %d of 2, %+v", n, q)
	}
}

func TestAnErrorLeavesTheQueueAsItIs(t *testing.T) {
	q := newQueue()
	mustPush(t, q.Push([]byte("abc")))
	mustPush(t, q.Push([]byte("def")))
	s := &socket{room: 4, err: io.ErrClosedPipe}
	n, err := q.Flush(s, make([]byte, 0, MinScratch))
	if n != 4 || err != io.ErrClosedPipe || q.Bytes() != 2 || q.Len() != 1 {
		t.Fatalf("%d, %v, %d bytes", n, err, q.Bytes())
	}
}

// Any order of pushes, drops and short writes sends what a plain list would.
func TestQueueAgreesWithAList(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q := newQueue()
		var list []model
		var want []byte
		s := &socket{}
		scratch := make([]byte, 0, 16+rng.IntN(64))
		for step := range uint64(200) {
			switch rng.IntN(5) {
			case 0, 1:
				f := model{bytes.Repeat([]byte{byte('a' + step%26)}, 1+rng.IntN(30)), rng.IntN(2) == 0, 0}
				ok := f.event && q.PushEvent(f.frame, Tag{1, step}) || !f.event && q.Push(f.frame)
				if ok {
					list = append(list, f)
				}
			case 2, 3:
				s.room = rng.IntN(60)
				n, err := q.Flush(s, scratch)
				if err != nil && err != errAgain || err == nil && q.Len() > 0 {
					t.Fatalf("seed %d: %v with %d left", seed, err, q.Len())
				}
				for ; n > 0; n-- {
					want = append(want, list[0].frame[list[0].sent])
					if list[0].sent++; list[0].sent == len(list[0].frame) {
						list = list[1:]
					}
				}
			case 4:
				if rng.IntN(5) > 0 {
					continue
				}
				before := len(list)
				list = slices.DeleteFunc(list, func(m model) bool { return m.event && m.sent == 0 })
				if n := q.DropEvents(nil); n != before-len(list) {
					t.Fatalf("seed %d: dropped %d, want %d", seed, n, before-len(list))
				}
			}
			if !bytes.Equal(s.got, want) || q.Len() != len(list) {
				t.Fatalf("seed %d: sent %q, want %q; %d left, want %d", seed, s.got, want, q.Len(), len(list))
			}
		}
	}
}

type model struct {
	frame []byte
	event bool
	sent  int
}

func TestAnEmptyQueueIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Queue{}); n > 40 {
		t.Errorf("a queue is %d B", n)
	}
	if n := unsafe.Sizeof(item{}); n > 64 {
		t.Errorf("an item is %d B", n)
	}
}

type sink struct{ n int }

func (s *sink) Write(p []byte) (int, error) { s.n += len(p); return len(p), nil }

func TestPushAndFlushDoNotAllocate(t *testing.T) {
	pool := NewPool(DefaultLimits(256 << 10))
	queues := make([]Queue, 100)
	for i := range queues {
		queues[i] = pool.Queue()
	}
	frame, scratch, s := make([]byte, 132), make([]byte, 0, 64<<10), new(sink)
	if n := testing.AllocsPerRun(20, func() {
		for i := range queues {
			for range 4 {
				queues[i].PushEvent(frame, Tag{1, 1})
			}
		}
		for i := range queues {
			queues[i].Flush(s, scratch)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestValidateReportsEveryField(t *testing.T) {
	if err := DefaultLimits(256 << 10).Validate(); err != nil {
		t.Fatal(err)
	}
	err := Limits{MaxBytes: 1, ReserveItems: 1 << 31}.Validate()
	for _, field := range []string{"max_items", "reserve_bytes", "reserve_items"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: does not name %s", err, field)
		}
	}
}

// BenchmarkFlush is the cost of a message without the system call.
func BenchmarkFlush(b *testing.B) {
	for _, k := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("messages=%d", k), func(b *testing.B) {
			pool := NewPool(DefaultLimits(256 << 10))
			q := pool.Queue()
			frame, scratch, s := make([]byte, 132), make([]byte, 0, 64<<10), new(sink)
			b.ReportAllocs()
			for b.Loop() {
				for range k {
					q.PushEvent(frame, Tag{1, 1})
				}
				q.Flush(s, scratch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*k), "ns/message")
		})
	}
}

// BenchmarkFanOut pushes one frame to 10,000 queues and flushes them all.
func BenchmarkFanOut(b *testing.B) {
	pool := NewPool(DefaultLimits(256 << 10))
	queues := make([]Queue, 10_000)
	for i := range queues {
		queues[i] = pool.Queue()
	}
	frame, scratch, s := make([]byte, 132), make([]byte, 0, 64<<10), new(sink)
	b.ReportAllocs()
	for b.Loop() {
		for i := range queues {
			queues[i].PushEvent(frame, Tag{1, 1})
		}
		for i := range queues {
			queues[i].Flush(s, scratch)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(queues)), "ns/delivery")
}
