package bus

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// readingConn reads what it is given, and keeps nothing of it.
type readingConn struct {
	mu   sync.Mutex // guards below
	next map[string]uint64
	err  error
	sent int
}

func (c *readingConn) MaxPayload() int64                      { return 1 << 20 }
func (c *readingConn) FlushWithContext(context.Context) error { return nil }

func (c *readingConn) Publish(subject string, data []byte) error {
	var e gatewayv1.Envelope
	err := proto.Unmarshal(data, &e)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	switch {
	case c.err != nil:
	case err != nil:
		c.err = err
	case subject != wire.Subject("spillway", e.Channel):
		c.err = fmt.Errorf("an envelope of %s on %s", e.Channel, subject)
	case e.Head != c.next[e.Channel]+1 || len(e.Events) != 1 || e.Events[0].Offset != e.Head:
		c.err = fmt.Errorf("%s: %d after %d", e.Channel, e.Head, c.next[e.Channel])
	case !bytes.Equal(e.Events[0].Data, payload(e.Channel, e.Head)):
		c.err = fmt.Errorf("%s: data of %d is %q", e.Channel, e.Head, e.Events[0].Data)
	}
	c.next[e.Channel] = e.Head
	return nil
}

// payload is of any size up to beyond what one piece of memory has.
func payload(channel string, offset uint64) []byte {
	size := 100 + int(offset*7919%400)
	if offset%500 == 0 {
		size = chunkBytes + 1
	}
	return []byte(strings.Repeat(fmt.Sprint(channel, "#", offset, ";"), size/4)[:size])
}

func single(channel string, offset uint64) *gatewayv1.Envelope {
	return &gatewayv1.Envelope{
		Channel: channel, Epoch: 1, Head: offset, Router: "r",
		Events: []*gatewayv1.BusEvent{{Offset: offset, Data: payload(channel, offset)}},
	}
}

// Many publish while the queue is emptied again and again: its memory is used anew, and
// what is sent is what was published, in order for each channel.
func TestMemoryIsUsedAnewOnlyAfterItWasSent(t *testing.T) {
	conn := &readingConn{next: make(map[string]uint64)}
	b := run(t, Default(), conn)
	const publishers, each = 8, 1200
	var all sync.WaitGroup
	for i := range publishers {
		all.Go(func() { // ends with its last
			for n := range uint64(each) {
				b.Publish(single(fmt.Sprint("c", i), n+1))
				for rand.IntN(50) == 0 && b.queued() > 0 {
					runtime.Gosched() // the queue is emptied between publishes too
				}
			}
		})
	}
	all.Wait()
	eventually(t, "all is sent", func() bool {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return conn.sent == publishers*each
	})
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if conn.err != nil {
		t.Fatal(conn.err)
	}
}

type nullConn struct{}

func (nullConn) Publish(string, []byte) error           { return nil }
func (nullConn) MaxPayload() int64                      { return 1 << 20 }
func (nullConn) FlushWithContext(context.Context) error { return nil }

// The subject is all that a message allocates, in two steps.
func TestAMessageCostsNoMemoryButItsSubject(t *testing.T) {
	b, err := New(Config{Prefix: "spillway", QueueBytes: Default().QueueBytes}, nullConn{})
	if err != nil {
		t.Fatal(err)
	}
	e := single("chat:1", 1)
	turn := func() {
		for range 100 {
			b.Publish(e)
		}
		b.drain()
	}
	turn()
	turn()
	if n := testing.AllocsPerRun(20, turn); n > 200 {
		t.Fatalf("%v allocations for 100 messages", n)
	}
}
