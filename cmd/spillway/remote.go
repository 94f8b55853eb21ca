package main

import (
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

// callTime bounds one call of a command.
const callTime = 15 * time.Second

// remote names the router to talk to.
type remote struct {
	Server     string `help:"Router, host:port." default:"localhost:8390" env:"SPILLWAY_SERVER"`
	APIKeyFile string `help:"File with the API key." env:"SPILLWAY_API_KEY_FILE" type:"path"`
	CAFile     string `help:"Certificates to believe; turns TLS on." env:"SPILLWAY_CA_FILE" type:"path"`
}

func (r *remote) dial() (*grpc.ClientConn, error) {
	return run.Dial(r.Server, r.APIKeyFile, r.CAFile)
}

// plain turns a gRPC status into words.
func plain(err error) error {
	if st, ok := status.FromError(err); ok && err != nil {
		return fmt.Errorf("%s: %s", st.Code(), st.Message())
	}
	return err
}

// progress says how far a long command is, on a terminal only.
type progress struct{ on bool }

func newProgress() *progress { return &progress{run.Terminal(os.Stderr)} }

func (p *progress) show(format string, args ...any) {
	if p.on {
		fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
	}
}

func (p *progress) end() {
	if p.on {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}
