package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/pubbench"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// benchPublishCmd measures durable publishes.
type benchPublishCmd struct {
	Store      []string      `help:"Stores: sqlite, postgres." enum:"sqlite,postgres" default:"sqlite,postgres"`
	Publishers []int         `help:"Publishers at once, a phase for each number." default:"1,16,256"`
	Channels   int           `help:"Channels that events are spread over." default:"10000"`
	Bytes      int           `help:"Of an event." default:"128"`
	Window     int           `help:"Requests of a stream that are unanswered at most." default:"16"`
	Batch      int           `help:"Events of a request of a stream." default:"1"`
	Time       time.Duration `help:"Of a phase." default:"4s"`
	Keep       string        `help:"Keep configurations and logs of the cluster in this folder." type:"path" placeholder:"DIR"`
	JSON       bool          `help:"Print the report as JSON." name:"json"`
}

// Run prints a table in Markdown.
func (c *benchPublishCmd) Run(e *env) error {
	o := pubbench.Options{
		Stores: c.Store, Publishers: c.Publishers, Channels: c.Channels, Bytes: c.Bytes, Window: c.Window, Batch: c.Batch,
		Time: c.Time, Keep: c.Keep, Out: os.Stderr,
	}
	if err := o.Validate(); err != nil {
		return run.Usagef("%s", run.OneLine(err))
	}
	report, err := pubbench.Run(e.ctx, o)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	report.Print(os.Stdout)
	return nil
}
