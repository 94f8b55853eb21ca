package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

// One request holds so many lines or bytes at most; the next is sent when it is
// answered. A failure therefore leaves nothing behind it published but lines of
// its own request.
const (
	requestLines = 100
	requestBytes = 512 << 10
)

// lineStream publishes a line an event over one stream, in order.
type lineStream struct {
	cmd    *publishCmd
	stream routerv1.PublisherService_PublishStreamClient
	out    *bufio.Writer
	bar    *progress

	batch []*routerv1.Publication
	at    []int // line number of each
	bytes int
	done  int // events acknowledged
	last  *routerv1.Placed
}

// lines publishes standard input; it stops at the first failure and says which line it
// was.
func (c *publishCmd) lines(ctx context.Context, client routerv1.PublisherServiceClient, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.PublishStream(ctx)
	if err != nil {
		return c.plain(err)
	}
	s := &lineStream{cmd: c, stream: stream, out: bufio.NewWriter(os.Stdout), bar: newProgress()}
	err = s.read(in)
	s.bar.end()
	if flushErr := s.out.Flush(); err == nil {
		err = flushErr
	}
	if err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return c.plain(err)
	}
	if c.JSON {
		return nil
	}
	where := ""
	if s.last != nil {
		where = fmt.Sprintf(", the last at %s:%d", s.last.GetEpoch(), s.last.GetOffset())
	}
	_, err = fmt.Printf("%s %d events%s\n", c.Channel, s.done, where)
	return err
}

func (s *lineStream) read(in io.Reader) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 64<<10), maxInputBytes)
	n := 0
	for scanner.Scan() {
		n++
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		p, err := s.cmd.publication(line)
		if err != nil {
			return errors.Join(s.flush(), run.Usagef("line %d: %v; %d events were published before it", n, err, s.done+len(s.batch)))
		}
		s.batch, s.at, s.bytes = append(s.batch, p), append(s.at, n), s.bytes+len(line)
		if len(s.batch) == requestLines || s.bytes >= requestBytes {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		return run.Usagef("line %d has more than %d bytes", n+1, maxInputBytes)
	} else if err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	return nil
}

// flush sends what is gathered and waits for the answer.
func (s *lineStream) flush() error {
	if len(s.batch) == 0 {
		return nil
	}
	err := s.stream.Send(&routerv1.PublishStreamRequest{Publications: s.batch})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: Recv says why
		return s.cmd.plain(err)
	}
	answer, err := s.stream.Recv()
	if err != nil {
		return fmt.Errorf("after %d events: %w", s.done, s.cmd.plain(err))
	}
	for i, r := range answer.GetResults() {
		if f := r.GetFailure(); f != nil {
			return fmt.Errorf("line %d: %s; %d events were published before it", s.at[i], f.GetMessage(), s.done)
		}
		s.done, s.last = s.done+1, r.GetPlaced()
		if s.cmd.JSON {
			if err := s.cmd.print(s.out, s.last); err != nil {
				return err
			}
		}
	}
	s.bar.show("%d events", s.done)
	s.batch, s.at, s.bytes = s.batch[:0], s.at[:0], 0
	return nil
}
