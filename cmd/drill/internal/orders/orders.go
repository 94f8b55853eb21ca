// Package orders reads the commands by which a parent process drives a child whose only
// thread lives in an epoll loop: JSON objects, one a line, on a file (its stdin). Used by
// loadgen and relay. A Reader belongs to the thread that polls; it never blocks. A
// command has at most 1 MiB.
package orders

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const maxBytes = 1 << 20

// Reader reads commands of one kind.
type Reader[C any] struct {
	file  *os.File
	input []byte // not a whole line yet
}

// From reads from a file that is polled for input.
func From[C any](file *os.File) *Reader[C] { return &Reader[C]{file: file} }

// Obey reads once what has come, by buf, and gives each whole command to obey. io.EOF:
// the parent has closed the file, or has gone.
func (r *Reader[C]) Obey(buf []byte, obey func(*C) error) error {
	n, err := unix.Read(int(r.file.Fd()), buf)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil
	case err != nil:
		return fmt.Errorf("control file: %w", err)
	case n == 0:
		return io.EOF
	}
	r.input = append(r.input, buf[:n]...)
	for {
		text, rest, ok := bytes.Cut(r.input, []byte("\n"))
		if !ok {
			if len(r.input) > maxBytes {
				return errors.New("control file: a line is too long")
			}
			return nil
		}
		var c C
		if err := json.Unmarshal(text, &c); err != nil {
			return fmt.Errorf("control file: %w", err)
		}
		r.input = rest
		if err := obey(&c); err != nil {
			return err
		}
	}
}
