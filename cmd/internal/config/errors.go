package config

import (
	"errors"
	"slices"
	"strings"
)

// Problem is one thing that is wrong.
type Problem struct {
	Where string // file, "environment" or flag
	Key   string // "limits.max_conns", or the variable's name; empty: the whole
	Text  string // what is wrong
}

func (p Problem) String() string {
	if p.Key == "" {
		return p.Where + ": " + p.Text
	}
	return p.Where + ": " + p.Key + ": " + p.Text
}

// Error is everything that is wrong with a configuration.
type Error struct{ Problems []Problem }

// Error is one line, whatever the number of problems.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "; ")
}

// lines takes apart what Validate methods return: errors joined, each "field:
// value: rule".
func lines(err error) []error {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, lines(e)...)
		}
		return all
	}
	return []error{err}
}

// has says that a problem of the same key is known: one report is enough.
func (e *Error) has(key string) bool {
	return slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Key == key })
}

// ExitCode is that of wrong usage: the operator has to change something.
func (e *Error) ExitCode() int { return 2 }
