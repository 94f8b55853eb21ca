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

// add takes a problem, unless one of the same key is known: one report is enough.
func (e *Error) add(p Problem) {
	if !slices.ContainsFunc(e.Problems, func(q Problem) bool { return q.Key == p.Key }) {
		e.Problems = append(e.Problems, p)
	}
}

// orNil is nil if nothing is wrong.
func (e *Error) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// ExitCode is that of wrong usage: the operator has to change something.
func (e *Error) ExitCode() int { return 2 }

// problems takes apart what Validate methods return: errors joined, each "key: value:
// rule".
func problems(err error) []Problem {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []Problem
		for _, e := range joined.Unwrap() {
			all = append(all, problems(e)...)
		}
		return all
	}
	key, text, ok := strings.Cut(err.Error(), ": ")
	if !ok {
		key, text = "", err.Error()
	}
	return []Problem{{Key: key, Text: text}}
}
