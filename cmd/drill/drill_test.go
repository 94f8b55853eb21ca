package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/drill/internal/drill"
)

// What the help of a scenario says is what it will do, not what another would.
func TestHelpOfADrillHasItsOwnDefaults(t *testing.T) {
	for _, line := range drill.Scenarios() {
		name := strings.Fields(line)[0]
		args := []string{name, "--help"}
		var help strings.Builder
		var c cli
		parser, err := kong.New(&c, drillDefaults(args), kong.Writers(&help, &help), kong.Exit(func(int) {}))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = parser.Parse(args) // it prints the help
		o := drill.DefaultOf(name)
		for flag, want := range map[string]any{
			"clients": o.Clients, "edges": o.Edges, "rate": o.Rate, "max-conns": o.MaxConns, "policy": fmt.Sprintf("%q", o.Policy), "store": fmt.Sprintf("%q", o.Store),
		} {
			if line := fmt.Sprintf("--%s=%v ", flag, want); !strings.Contains(help.String(), line) {
				t.Errorf("the help of %s has no %s", name, line)
			}
		}
	}
}
