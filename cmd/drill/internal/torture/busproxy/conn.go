package busproxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	maxLine    = 64 << 10
	maxMessage = 64 << 20
	maxLate    = 4096
	writeTime  = 10 * time.Second // the node takes nothing for so long: it is hung up on
)

var errProtocol = errors.New("bus proxy: not the protocol of NATS")

// conn is one connection of a node.
type conn struct {
	p            *Proxy
	node, server net.Conn

	mu     sync.Mutex // guards what goes to the node, and all below
	timers map[*time.Timer]bool
	closed bool
}

// close ends both halves, and forgets what is late.
func (c *conn) close() {
	_ = c.node.Close() // either may be closed already
	_ = c.server.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for t := range c.timers {
		t.Stop()
	}
	c.timers = nil
}

// up passes on what the node sends.
func (c *conn) up() {
	defer c.close()
	c.copy(c.server, c.node)
}

func (c *conn) copy(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		c.p.pass()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// down reads what the server sends, unit by unit.
func (c *conn) down() {
	if c.p.cfg.Raw {
		c.copy(c.node, c.server)
		return
	}
	r := bufio.NewReaderSize(c.server, maxLine)
	for {
		unit, subject, err := next(r)
		if err != nil {
			return
		}
		c.p.pass()
		if subject == "" || c.p.cfg.Touch != nil && !c.p.cfg.Touch(subject) {
			c.write(unit)
			continue
		}
		for _, wait := range c.p.fate() {
			c.later(unit, wait)
		}
	}
}

func (c *conn) write(unit []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.node.SetWriteDeadline(time.Now().Add(writeTime)) // of a closed one: the write says so
	if _, err := c.node.Write(unit); err != nil {
		_ = c.server.Close() // down ends
	}
}

// later writes a unit after a while, unless the connection has ended.
func (c *conn) later(unit []byte, wait time.Duration) {
	c.mu.Lock()
	full := len(c.timers) >= maxLate
	c.mu.Unlock()
	if wait <= 0 || full {
		c.write(unit)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(wait, func() {
		c.mu.Lock()
		known := c.timers[t]
		delete(c.timers, t)
		c.mu.Unlock()
		if known {
			c.p.pass()
			c.write(unit)
		}
	})
	c.timers[t] = true
}

// next reads one unit of the protocol; subject is that of a message, else empty.
func next(r *bufio.Reader) (unit []byte, subject string, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, "", err
	}
	unit = append([]byte(nil), line...)
	words := bytes.Fields(line)
	if len(words) == 0 || !bytes.EqualFold(words[0], []byte("MSG")) && !bytes.EqualFold(words[0], []byte("HMSG")) {
		return unit, "", nil
	}
	size, err := strconv.Atoi(string(words[len(words)-1]))
	if err != nil || len(words) < 4 || size < 0 || size > maxMessage {
		return nil, "", errProtocol
	}
	at := len(unit)
	unit = append(unit, make([]byte, size+2)...) // and the end of the line
	if _, err := io.ReadFull(r, unit[at:]); err != nil {
		return nil, "", err
	}
	return unit, string(words[1]), nil
}
