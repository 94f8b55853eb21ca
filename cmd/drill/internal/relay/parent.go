package relay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
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
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan line // the reader closes it when the process has ended
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

func spawn(args []string) (*child, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in, lines: make(chan line, 4)}
	// Reads answers until the process ends; Close waits for it.
	go c.read(out)
	return c, nil
}

func (c *child) read(out io.Reader) {
	defer close(c.lines)
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		var v line
		if json.Unmarshal(scanner.Bytes(), &v) != nil {
			continue
		}
		select {
		case c.lines <- v:
		default: // an answer that was given up
		}
	}
	_ = c.cmd.Wait() // its last line says why
}

func (c *child) ask(cmd command) (int, error) {
	if err := c.tell(cmd); err != nil {
		return 0, err
	}
	return c.answer(cmd)
}

func (c *child) tell(cmd command) error {
	text, err := json.Marshal(cmd)
	if err == nil {
		_, err = c.in.Write(append(text, '\n'))
	}
	return err
}

func (c *child) answer(cmd command) (int, error) {
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	for {
		select {
		case v, ok := <-c.lines:
			switch {
			case !ok:
				return 0, errors.New("process ended")
			case v.Type == "error":
				return 0, errors.New(v.Message)
			case v.Type == cmd.Cmd:
				return v.N, nil
			}
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
		if err := c.tell(cmd); err != nil {
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
	for _, c := range p.children {
		_ = c.in.Close()
	}
	var err error
	for _, c := range p.children {
		timer := time.NewTimer(closeTime)
		for open := true; open; {
			select {
			case _, open = <-c.lines:
			case <-timer.C:
				_ = c.cmd.Process.Kill()
				err = errors.Join(err, errors.New("a relay had to be killed"))
			}
		}
		timer.Stop()
	}
	p.children = nil
	return err
}
