package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/drill/internal/drill"
	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// drillCmd breaks a cluster on purpose and checks what was promised.
type drillCmd struct {
	Scenario   string        `arg:"" optional:"" help:"What to do; without it the scenarios are listed."`
	Edges      int           `help:"Edges of the cluster that is started." default:"${drill_edges}"`
	Clients    int           `help:"Clients, in channels of ${drill_together}." default:"${drill_clients}"`
	Rate       int           `help:"Events published in a second." default:"${drill_rate}"`
	Policy     string        `help:"Of the clients: sdk, fixed-1s, fixed-5s, exponential." default:"${drill_policy}"`
	OneAddress bool          `help:"All edges behind one address: a small balancer." name:"one-address"`
	HAProxy    bool          `help:"All edges behind HAProxy, which must be installed." name:"haproxy"`
	Deadline   time.Duration `help:"Deadline of a drain." default:"${drill_deadline}"`
	Window     time.Duration `help:"Time for an evacuation." default:"${drill_window}"`
	MaxConns   int           `help:"Connections that an edge may hold." default:"${drill_max_conns}" name:"max-conns"`
	Part       string        `help:"Outage: what is away: nats, etcd, store, routers." default:"${drill_part}"`
	Away       time.Duration `help:"Outage: for how long." default:"${drill_away}"`
	Ping       time.Duration `help:"Between two heartbeats of a client." default:"${drill_ping}"`
	Steady     time.Duration `help:"Quiet time before the harm." default:"${drill_steady}"`
	Fresh      int           `help:"Admission of an edge: fresh clients in a second." default:"${drill_fresh}"`
	Burst      int           `help:"Admission of an edge: fresh clients at once." default:"${drill_burst}"`
	Resume     int           `help:"Admission of an edge: resumes in a second." default:"${drill_resume}"`
	Moved      int           `help:"Admission of an edge: moved clients in a second." default:"${drill_moved}"`
	FillRate   int           `help:"Clients that connect in a second while the cluster is filled." default:"${drill_fill_rate}" name:"fill-rate"`
	Store      string        `help:"Store of the cluster: sqlite or postgres." enum:",sqlite,postgres" default:"${drill_store}"`
	Report     string        `help:"Write the report, JSON, to this file." type:"path" placeholder:"FILE"`
	JSON       bool          `help:"Print the report as JSON." name:"json"`
	Table      string        `help:"Print a table and the curves of the reports in this folder, in Markdown, and do nothing else." type:"path" placeholder:"DIR"`
	Keep       string        `help:"Keep configurations and logs of the cluster in this folder." type:"path" placeholder:"DIR"`
	Server     string        `help:"Router of a given cluster: host:port." placeholder:"ADDR"`
	Edge       string        `help:"WebSocket URL of a given cluster." placeholder:"URL"`
	SecretFile string        `help:"HS256 secret of a given cluster, to make tokens." type:"path" placeholder:"FILE" name:"secret-file"`
	APIKeyFile string        `help:"File with the API key of a given cluster." type:"path" placeholder:"FILE" name:"api-key-file"`
	CAFile     string        `help:"Certificates to believe; turns TLS to the router on." type:"path" placeholder:"FILE" name:"ca-file"`
}

// drillDefaults are the defaults of the scenario that the arguments name: each has its
// own size, and the help is to tell what will be done.
func drillDefaults(args []string) kong.Vars {
	scenario := ""
	known := func(arg string) bool {
		return slices.ContainsFunc(drill.Scenarios(), func(s string) bool { return strings.Fields(s)[0] == arg })
	}
	if at := slices.IndexFunc(args, known); at >= 0 {
		scenario = args[at]
	}
	o := drill.DefaultOf(scenario)
	vars := kong.Vars{}
	for name, value := range map[string]any{
		"edges": o.Edges, "clients": o.Clients, "rate": o.Rate, "policy": o.Policy, "deadline": o.Deadline, "window": o.Window,
		"max_conns": o.MaxConns, "ping": o.Ping, "steady": o.Steady, "fresh": o.Admission.Fresh, "burst": o.Admission.Burst,
		"resume": o.Admission.Resume, "moved": o.Admission.Moved, "fill_rate": o.FillRate, "part": o.Part, "away": o.Away, "store": o.Store, "together": o.InChannel(),
	} {
		vars["drill_"+name] = fmt.Sprint(value)
	}
	return vars
}

// Run exits 1 if a promise is broken.
func (c *drillCmd) Run(e *env) error {
	if c.Table != "" {
		reports, err := drill.Reports(c.Table)
		if err != nil {
			return err
		}
		fmt.Printf("%s\n%s", drill.Table(reports), drill.Curves(reports))
		return nil
	}
	if c.Scenario == "" {
		fmt.Println(strings.Join(drill.Scenarios(), "\n"))
		return nil
	}
	o := drill.Default()
	o.Scenario, o.Edges, o.Clients, o.Rate, o.Policy = c.Scenario, c.Edges, c.Clients, c.Rate, c.Policy
	o.Deadline, o.Steady, o.FillRate, o.Store, o.Keep = c.Deadline, c.Steady, c.FillRate, c.Store, c.Keep
	o.Window, o.MaxConns, o.Ping, o.Part, o.Away = c.Window, c.MaxConns, c.Ping, c.Part, c.Away
	o.Admission = drill.Lanes{Fresh: c.Fresh, Burst: c.Burst, Resume: c.Resume, Moved: c.Moved}
	o.Server, o.Edge, o.APIKeyFile, o.CAFile, o.Out = c.Server, c.Edge, c.APIKeyFile, c.CAFile, os.Stderr
	switch {
	case c.HAProxy:
		o.OneAddress = "haproxy"
	case c.OneAddress:
		o.OneAddress = "builtin"
	}
	if c.SecretFile != "" {
		secret, err := config.Secret("--secret-file", c.SecretFile)
		if err != nil {
			return run.Usagef("%v", err)
		}
		o.Secret = []byte(secret)
	}
	if c.Keep != "" {
		if err := os.MkdirAll(c.Keep, 0o700); err != nil {
			return run.Usagef("--keep: %v", err)
		}
	}
	report, err := drill.Run(e.ctx, o)
	if err != nil {
		return err
	}
	return c.show(report)
}

func (c *drillCmd) show(report *drill.Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if c.Report != "" {
		if err := os.WriteFile(c.Report, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if c.JSON {
		fmt.Println(string(text))
	} else {
		report.Print(os.Stdout)
	}
	if !report.Kept {
		return fmt.Errorf("drill %s: a promise is broken", report.Scenario)
	}
	return nil
}
