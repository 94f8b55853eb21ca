package tlsconn

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"reflect"
	"testing"
	"unsafe"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// kept is what crypto/tls holds of records and handshake messages.
func (c *Conn) kept() (records, messages int) {
	at := unsafe.Pointer(c.tls)
	return (*bytes.Buffer)(unsafe.Add(at, where.rawInput)).Cap(), (*bytes.Buffer)(unsafe.Add(at, where.hand)).Cap()
}

// This is what must pass before a version of Go is listed: so it looks for the buffers
// whether the version is listed or not.
func TestAnIdleConnKeepsNoBufferOfItsHandshake(t *testing.T) {
	defer func(l layout) { where = l }(where)
	where = look(reflect.TypeFor[tls.Conn]())
	eachWorld(t, func(t *testing.T, e *edge) {
		more := make(chan int)
		client := e.dial(nil, func(c *tls.Conn) error {
			for n := range more {
				if _, err := c.Write(pattern(n)); err != nil {
					return err
				}
			}
			return nil
		})
		c := e.join()
		if records, messages := c.kept(); !where.ok || records+messages > 0 {
			t.Errorf("after the handshake %d bytes are kept of records, %d of messages (buffers found: %v)", records, messages, where.ok)
		}
		if cap(c.shim.in)+cap(c.shim.out) > 0 {
			t.Errorf("%d bytes of its flights are kept", cap(c.shim.in)+cap(c.shim.out))
		}
		buf := make([]byte, 1000) // smaller than a record: the rest waits in the buffer
		for _, n := range []int{100, 16_000, 3_000, 50} {
			more <- n
			var got []byte
			e.turn(func(poller.Event) bool {
				m, err := c.Read(buf)
				if err != nil && !errors.Is(err, poller.ErrAgain) {
					t.Fatal(err)
				}
				got = append(got, buf[:m]...)
				return len(got) >= n
			})
			if !bytes.Equal(got, pattern(n)) {
				t.Fatalf("%d bytes came back changed", n)
			}
			if _, err := c.Read(buf); !errors.Is(err, poller.ErrAgain) {
				t.Fatalf("an empty conn says %v", err)
			}
			if records, _ := c.kept(); records > keptBytes {
				t.Errorf("%d bytes are kept after a record of %d", records, n)
			}
		}
		close(more)
		if err := <-client; err != nil {
			t.Fatal(err)
		}
	})
}

// Idle conns cost 3.5 KB more with a version of Go that is not listed. Whoever takes the
// next version must not find that out from the memory of an edge.
func TestTheVersionOfGoInUseIsListed(t *testing.T) {
	if why := SlimOff(); why != "" {
		t.Errorf("buffers of idle conns are not freed: %s; if all other tests of this package pass, add this version to the list in slim.go", why)
	}
}

func TestOnlyListedVersionsOfGoAreTouched(t *testing.T) {
	for version, want := range map[string]bool{
		"go1.26": true, "go1.26.8": true, "go1.26.8 X:nodwarf5": true,
		"go1.2": false, "go1.25.9": false, "go1.260": false, "go1.26rc1": false, "go1.27": false,
		"devel go1.27-0c7ffed Tue Dec 1": false, "go1.27-devel_0c7ffed": false, "": false,
	} {
		if locate(version).ok != want {
			t.Errorf("%q: buffers are found: %v", version, !want)
		}
	}
	defer func(l layout) { where = l }(where)
	where = locate("go1.27")
	e := worlds["mem"](t)
	client := e.dial(nil, func(c *tls.Conn) error { _, err := c.Write(pattern(3000)); return err })
	c := e.join()
	if at := look(reflect.TypeFor[tls.Conn]()); at.ok {
		rawInput := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c.tls), at.rawInput))
		hand := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c.tls), at.hand))
		if rawInput.Cap()+hand.Cap() == 0 {
			t.Error("the buffers of the handshake were freed")
		}
	}
	if err := <-client; err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(c, 3000))
	if err != nil || !bytes.Equal(got, pattern(3000)) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if SlimOff() == "" {
		t.Error("it says that buffers are freed")
	}
}

func TestBuffersThatAreNotThereAreLeftAlone(t *testing.T) {
	type renamed struct{ input, hand bytes.Buffer }
	type changed struct {
		rawInput []byte
		input    bytes.Reader
		hand     bytes.Buffer
	}
	for _, conn := range []any{
		renamed{input: bytes.Buffer{}, hand: bytes.Buffer{}}, changed{rawInput: nil, input: bytes.Reader{}, hand: bytes.Buffer{}}, struct{}{},
	} {
		if look(reflect.TypeOf(conn)).ok {
			t.Errorf("%T is taken for a tls.Conn", conn)
		}
	}
	defer func(l layout) { where = l }(where)
	where = layout{}
	e := worlds["mem"](t)
	client := e.dial(nil, func(c *tls.Conn) error { _, err := c.Write(pattern(3000)); return err })
	c := e.join()
	if err := <-client; err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(c, 3000))
	if err != nil || !bytes.Equal(got, pattern(3000)) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}
