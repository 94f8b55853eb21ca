package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit codes of every command.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2 // wrong arguments, configuration, ports that are taken
	ExitPartial = 3 // partly done
)

// coded errors choose their exit code.
type coded interface{ ExitCode() int }

// UsageError is something that the user has to change before trying again.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

// ExitCode is ExitUsage.
func (e *UsageError) ExitCode() int { return ExitUsage }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// PortTakenError says which address somebody else listens on.
type PortTakenError struct {
	What string // who wanted it: "edge", "ops of edge-1"
	Addr string // host:port
	Key  string // the flag or key that changes it; may be empty
}

func (e *PortTakenError) Error() string {
	text := fmt.Sprintf("%s: %s is already in use", e.What, e.Addr)
	if e.Key != "" {
		text += "; choose another with " + e.Key
	}
	return text
}

// ExitCode is ExitUsage.
func (e *PortTakenError) ExitCode() int { return ExitUsage }

// Code is the exit code for what a command returned.
func Code(err error) int {
	if err == nil {
		return ExitDone
	}
	var c coded
	if errors.As(err, &c) {
		return c.ExitCode()
	}
	return ExitFailed
}

// Main runs a command, prints its error as one line and returns the exit code. The
// command gets ctx, which ends with the first SIGINT or SIGTERM, and abort, which
// ends with the second.
func Main(name string, stderr io.Writer, command func(ctx, abort context.Context) error) int {
	ctx, abort, stop := Signals(context.Background())
	defer stop()
	err := command(ctx, abort)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", name, OneLine(err))
	}
	return Code(err)
}

// OneLine is the text of an error without line ends.
func OneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
