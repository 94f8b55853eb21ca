package feed

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// stalling is a sink that can be made to stand still, and with it its shard.
type stalling struct {
	*recorder
	stall atomic.Int64 // the next Live takes this long
}

func (s *stalling) Live(channel string, epoch uint64, frames []Frame, history bool) {
	time.Sleep(time.Duration(s.stall.Swap(0)))
	s.recorder.Live(channel, epoch, frames, history)
}

// A shard stands still for a second while events come. What fits into its queue is
// delivered from it and no router is asked.
func TestAStalledShardDeliversWhatItsQueueHolds(t *testing.T) {
	stalled := new(stalling)
	inBubble(t, func(c *Config) { c.Shards = 1 }, func(b *bench) {
		stalled.recorder = b.sinks[0]
		b.table.sinks[0] = stalled
		b.join(0, 1, "a", nil)
		b.wait(2 * time.Second)
		b.sinks[0].take()
		stalled.stall.Store(int64(time.Second))
		for range 2000 {
			b.c.publish("a", 1, false)
			time.Sleep(250 * time.Microsecond)
		}
		bytes, dropped := b.table.shards[0].backlog.state()
		if bytes == 0 || dropped != 0 {
			t.Errorf("in the middle of the stall %d bytes wait, %d were dropped", bytes, dropped)
		}
		b.wait(2 * time.Second)
		b.deliveredInOrder("1", 2000)
		if n, _ := b.c.asksFor(repairAsk); n != 0 {
			t.Errorf("%d repairs of what nobody lost", n)
		}
		if bytes, _ := b.table.shards[0].backlog.state(); bytes != 0 {
			t.Errorf("%d bytes are counted in an empty queue", bytes)
		}
	})
}

// What does not fit is dropped and counted, the queue stays within its bytes, and
// all of it is fetched: where newer events show the loss and where nothing does.
func TestAStalledShardDropsCountsAndRepairs(t *testing.T) {
	stalled := new(stalling)
	const most = 64 << 10
	inBubble(t, func(c *Config) { c.Shards, c.QueueBytes = 1, most }, func(b *bench) {
		stalled.recorder = b.sinks[0]
		b.table.sinks[0] = stalled
		b.c.channel("quiet").epoch = 7
		b.join(0, 1, "busy", nil)
		b.join(0, 2, "quiet", nil)
		b.wait(2 * time.Second)
		b.sinks[0].take()
		stalled.stall.Store(int64(time.Second))
		b.c.publish("busy", 1, false)
		b.wait(time.Millisecond)
		for range 2000 {
			b.c.publish("busy", 1, false)
		}
		b.wait(time.Millisecond)
		b.c.publish("quiet", 1, false)
		b.wait(time.Millisecond)
		if bytes, dropped := b.table.shards[0].backlog.state(); bytes > most || dropped < 1000 {
			t.Errorf("%d bytes of %d wait, %d messages were dropped", bytes, most, dropped)
		}
		b.wait(999 * time.Millisecond) // it goes on
		began := time.Now()
		var quietAfter, busyAfter time.Duration
		for quietAfter == 0 || busyAfter == 0 {
			b.wait(50 * time.Millisecond)
			log := b.sinks[0].peek()
			if quietAfter == 0 && strings.Contains(log, "7:1") {
				quietAfter = time.Since(began)
			}
			if busyAfter == 0 && strings.Contains(log, "1:2001") {
				busyAfter = time.Since(began)
			}
			if time.Since(began) > 5*time.Second {
				t.Fatalf("5 s after the stall: %.200s", log)
			}
		}
		t.Logf("repaired after the stall: the busy channel %v, the quiet one %v", busyAfter, quietAfter)
		b.keepOnly(func(line string) bool { return !strings.Contains(line, "7:1") })
		b.deliveredInOrder("1", 2001)
	})
}

// While messages are dropped all the time, the quiet channels are looked at all the same.
func TestChecksGoOnWhileTheBusIsDisruptedAllTheTime(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		b.join(0, 1, "a", nil)
		b.wait(5 * time.Second)
		b.sinks[0].take()
		b.c.publish("a", 1, true)
		for range 100 {
			b.c.set(func() { b.c.reconnects++ })
			b.wait(20 * time.Millisecond)
		}
		b.heard(0, "live 1:1")
		before, _ := b.c.asksFor(headAsk)
		b.wait(2 * time.Second) // the last one is answered too, once
		if after, _ := b.c.asksFor(headAsk); after-before < 1 || after-before > 2 {
			t.Errorf("%d checks after the last disruption", after-before)
		}
	})
}

// However many channels are behind, no more data is on its way than the budget says, and
// the gauge tells how much.
func TestRepairsInFlightAreBoundedInBytes(t *testing.T) {
	const chunks = 4
	inBubble(t, func(c *Config) { c.Shards, c.RepairBytes = 1, chunks*c.ChunkBytes }, func(b *bench) {
		for i := range 100 {
			b.join(0, uint64(i), fmt.Sprint("c", i), nil)
		}
		b.wait(2 * time.Second)
		b.sinks[0].take()
		const answer = 200 * time.Millisecond
		b.c.set(func() { b.c.delay = answer })
		for i := range 100 {
			b.c.publish(fmt.Sprint("c", i), 1, true)
			b.c.publish(fmt.Sprint("c", i), 1, false)
		}
		most := 0.0
		for range 400 {
			b.wait(25 * time.Millisecond)
			var m dto.Metric
			if err := b.table.metrics.repairBytes.Write(&m); err != nil {
				t.Fatal(err)
			}
			most = max(most, m.GetGauge().GetValue())
		}
		if want := float64(chunks * Default().ChunkBytes); most != want {
			t.Errorf("the gauge showed %.0f bytes at most, want %.0f", most, want)
		}
		var asked []time.Time
		b.c.set(func() {
			for i, a := range b.c.asked {
				if repairAsk(a) {
					asked = append(asked, b.c.askedAt[i])
				}
			}
		})
		if len(asked) != 100 {
			t.Errorf("%d repairs for 100 channels", len(asked))
		}
		for i := chunks; i < len(asked); i++ {
			if asked[i].Sub(asked[i-chunks]) < answer {
				t.Fatalf("%d repairs were in flight", chunks+1)
			}
		}
		if log := b.sinks[0].peek(); strings.Count(log, "1:2") != 100 || strings.Contains(log, "gap") {
			t.Errorf("delivered: %.200s", log)
		}
	})
}

func (r *recorder) peek() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

// keepOnly leaves of what sink 0 heard only the lines that match.
func (b *bench) keepOnly(match func(string) bool) {
	r := b.sinks[0]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = slices.DeleteFunc(r.log, func(line string) bool { return !match(line) })
}

// deliveredInOrder wants exactly the events 1 to n of one channel of an epoch, nothing else.
func (b *bench) deliveredInOrder(epoch string, n int) {
	b.t.Helper()
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(epoch, ":", i+1))
	}
	got := strings.Fields(strings.ReplaceAll(strings.Join(b.sinks[0].take(), " "), "live ", ""))
	if strings.Join(got, " ") != strings.Join(want, " ") {
		b.t.Errorf("delivered %d events, want %d in order: %.300s", len(got), n, got)
	}
}
