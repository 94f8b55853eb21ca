package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endGrace is how long a process gets after SIGKILL; the kernel needs a moment for
// thousands of sockets.
const endGrace = 20 * time.Second

// Process is one part of a cluster. Its methods may be called from any goroutine.
type Process struct {
	Name string
	args []string
	c    *Cluster

	mu   sync.Mutex // guards all below
	cmd  *exec.Cmd
	done chan struct{} // closed when the newest run has ended
	code int           // exit code of it; -1: a signal
}

// start runs the process; it must not be running.
func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		select {
		case <-p.done:
		default:
			return fmt.Errorf("%s runs already", p.Name)
		}
	}
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	binary := p.c.cfg.Binary
	cmd := exec.Command(binary[0], append(binary[1:len(binary):len(binary)], p.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.c.cfg.Env != nil {
		cmd.Env = append(os.Environ(), p.c.cfg.Env(p.c, p.Name)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // an interrupt from the terminal is not for it
		Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	// Waits for the process; ends with it; Close kills it and waits for done.
	go p.wait(cmd, p.done)
	return nil
}

func (p *Process) wait(cmd *exec.Cmd, done chan struct{}) {
	_ = cmd.Wait() // the state has all that it says
	p.mu.Lock()
	p.code = cmd.ProcessState.ExitCode()
	p.mu.Unlock()
	close(done)
}

// Signal the process.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	if cmd == nil {
		return fmt.Errorf("%s was never started", p.Name)
	}
	err := cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Done is closed when the process that runs now has ended.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Running says that it has not ended.
func (p *Process) Running() bool {
	done := p.Done()
	if done == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// ExitCode of the last run; -1: it was ended by a signal.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// PID of the newest run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Kill ends it as a crash would, and waits. No-op if it does not run.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, endGrace) }

// Stop asks it to end, waits, and kills it after the grace.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.end(syscall.SIGTERM, grace); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

func (p *Process) end(sig syscall.Signal, grace time.Duration) error {
	if !p.Running() {
		return nil
	}
	if err := p.Signal(sig); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.Done():
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not end within %v of %v", p.Name, grace, sig)
	}
}

// Restart starts it again, with the same arguments.
func (p *Process) Restart() error { return p.start() }

func (p *Process) logPath() string { return filepath.Join(p.c.cfg.Dir, p.Name+".log") }

// LogTail is the last lines that it wrote.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.logPath())
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
