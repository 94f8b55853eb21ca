package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
)

// answerTime bounds one command, and closeTime the end of a process.
const (
	answerTime = 30 * time.Second
	closeTime  = 10 * time.Second
)

// Parent drives the processes of one address. Its methods may be called from one
// goroutine at a time.
type Parent struct {
	addr     string
	children []*child
}

type child struct {
	*process.Process
	lines chan line
}

// Start runs enough processes for that many connections. command runs Child.
func Start(command []string, cfg Config, conns int) (*Parent, error) {
	p := &Parent{addr: cfg.Listen}
	for range max(1, (conns+PairsPerProcess-1)/PairsPerProcess) {
		c, err := spawn(command)
		if err == nil {
			p.children = append(p.children, c)
			_, err = c.ask(startCommand(cfg))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("relay: %w", err), p.Close())
		}
	}
	return p, nil
}

func startCommand(cfg Config) command { return command{Cmd: cmdStart, Config: &cfg} }

func spawn(command []string) (*child, error) {
	c := &child{lines: make(chan line, 4)}
	var err error
	c.Process, err = process.Start(process.Config{Name: "relay", Command: command, Line: func(text []byte) {
		var v line
		if json.Unmarshal(text, &v) != nil {
			return
		}
		select {
		case c.lines <- v:
		default: // an answer that was given up
		}
	}})
	return c, err
}

func (c *child) ask(cmd command) (int, error) {
	if err := c.Tell(cmd); err != nil {
		return 0, err
	}
	return c.answer(cmd)
}

func (c *child) answer(cmd command) (int, error) {
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	for {
		select {
		case v := <-c.lines:
			switch {
			case v.Type == "error":
				return 0, errors.New(v.Message)
			case v.Type == cmd.Cmd:
				return v.N, nil
			}
		case <-c.Done():
			return 0, errors.New("process ended")
		case <-timer.C:
			return 0, fmt.Errorf("no answer to %s", cmd.Cmd)
		}
	}
}

// Addr is where clients connect.
func (p *Parent) Addr() string { return p.addr }

// Cut ends all connections, silently or with FIN, and says how many there were. New
// ones are taken as before. All processes cut at once.
func (p *Parent) Cut(silent bool) (n int, err error) {
	cmd := command{Cmd: cmdCut, Silent: silent}
	for _, c := range p.children {
		if err := c.Tell(cmd); err != nil {
			return 0, err
		}
	}
	for _, c := range p.children {
		k, err := c.answer(cmd)
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// Close ends all processes and their connections. Idempotent.
func (p *Parent) Close() error {
	var errs []error
	for _, c := range p.children {
		errs = append(errs, c.CloseInput(closeTime))
	}
	p.children = nil
	return errors.Join(errs...)
}
