package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/proto/wire"
)

// callTime bounds one call of a command.
const callTime = 15 * time.Second

// remote names the router to talk to.
type remote struct {
	Server     string `help:"Router: host:port, or https://host:port." default:"localhost:8390" env:"SPILLWAY_SERVER" placeholder:"ADDR"`
	APIKeyFile string `help:"File with the API key." env:"SPILLWAY_API_KEY_FILE" placeholder:"FILE" type:"path" name:"api-key-file"`
	CAFile     string `help:"Certificates to believe; turns TLS on." env:"SPILLWAY_CA_FILE" placeholder:"FILE" type:"path" name:"ca-file"`
}

func (r *remote) dial() (*grpc.ClientConn, error) {
	return run.Dial(r.Server, r.APIKeyFile, r.CAFile)
}

// plain turns a gRPC status into words; a request that was wrong is wrong usage.
func (r *remote) plain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch st.Code() {
	case codes.InvalidArgument:
		return run.Usagef("%s", st.Message())
	case codes.Unavailable:
		if _, why, ok := strings.Cut(st.Message(), "Error while dialing: "); ok {
			return fmt.Errorf("no router answers: %s; --server names another", strings.Trim(why, `"`))
		}
	}
	return fmt.Errorf("%s: %s", st.Code(), st.Message())
}

// watchEvery is the time between two listings of --watch.
const watchEvery = time.Second

// watch asks and shows, once or, if on, each second until ctx ends; then a router that
// is away may come back.
func watch[T any](ctx context.Context, r *remote, on bool, ask func(context.Context) (T, error), show func(T) error) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, callTime)
		answer, err := ask(call)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !on:
			return r.plain(err)
		case err != nil:
			_, _ = fmt.Fprintf(os.Stderr, "spillway: %s\n", run.OneLine(r.plain(err)))
		default:
			if err := show(answer); err != nil {
				return err
			}
		}
		if !on {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// position reads EPOCH:OFFSET.
func position(text string) (epoch string, offset uint64, err error) {
	i := strings.LastIndexByte(text, ':')
	if i > 0 {
		epoch = text[:i]
		offset, err = strconv.ParseUint(text[i+1:], 10, 64)
	}
	if i <= 0 || err != nil || offset > wire.MaxOffset {
		return "", 0, run.Usagef("--since: %q is not EPOCH:OFFSET", text)
	}
	return epoch, offset, nil
}

// progress says on a terminal how far a long command is.
type progress struct {
	on   bool
	last time.Time
}

func newProgress() *progress { return &progress{on: run.Terminal(os.Stderr)} }

func (p *progress) show(format string, args ...any) {
	if p.on && time.Since(p.last) > 100*time.Millisecond {
		p.last = time.Now()
		_, _ = fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
	}
}

// end removes the line.
func (p *progress) end() {
	if p.on && !p.last.IsZero() {
		_, _ = fmt.Fprint(os.Stderr, "\r\033[K")
	}
}

// errNoChannel is the end of a subscribe whose channels have all ended.
var errNoChannel = errors.New("every channel has ended")
