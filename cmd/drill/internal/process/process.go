// Package process runs programs of this machine as child processes. It is the one place
// in which drills, benchmarks and tests of whole clusters start any: the parts of a
// cluster, load generators, balancers, routers that are to be killed.
//
// Packages cluster, loadgen, relay, drill and the tests call it; it calls the operating
// system only. A Process can be started again after it has ended, with the same command
// and on the same ports. Some processes hold a conversation: what Tell is given they read
// as a line of JSON on their standard input, and each line that they write on their
// standard output is given to Config.Line. Package orders is the child's side of it.
//
// Life: two goroutines for each run of a process that converses, else one, wait for it
// and end with it. A process never outlives the program that started it: the kernel kills
// it with the thread that started it, and Kill and Stop wait for its end.
//
// Left out on purpose: what the programs are and how they are told to serve (package
// cluster), and processes of other machines.
package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endGrace is how long a process gets after SIGKILL; the kernel needs a moment for
// thousands of sockets.
const endGrace = 20 * time.Second

// maxLine bounds a line of a conversation: the report of a load generator is large.
const maxLine = 64 << 20

// Config says what runs.
type Config struct {
	Name    string   // for errors
	Command []string // the program and its arguments; see Self
	Env     []string // added to ours
	Log     string   // the file to which its output is appended; "": our standard error
	// Line makes the process converse. One goroutine calls it for each line of the
	// process's standard output; the bytes are good until it returns. Its standard error
	// goes to Log.
	Line func(line []byte)
	// Environ gives more variables at each start; nil: none.
	Environ func() []string
}

// Process is one program that runs, or has run. Its methods may be called from any
// goroutine.
type Process struct {
	Name string
	cfg  Config

	mu   sync.Mutex // guards all below
	cmd  *exec.Cmd
	in   io.WriteCloser // of a process that converses
	done chan struct{}  // closed when the newest run has ended
	code int            // exit code of it; -1: a signal
}

// Self is the command of this program with other arguments.
func Self(args ...string) ([]string, error) {
	self, err := os.Executable()
	return append([]string{self}, args...), err
}

// Build compiles a program of this module and says where it is.
func Build(pkg, folder string) (path string, err error) {
	path = folder + "/" + pkg[strings.LastIndexByte(pkg, '/')+1:]
	out, err := exec.Command("go", "build", "-o", path, "github.com/spillway-io/spillway/"+pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// New prepares a process that Start will run.
func New(cfg Config) *Process { return &Process{Name: cfg.Name, cfg: cfg} }

// Start runs a new process.
func Start(cfg Config) (*Process, error) {
	p := New(cfg)
	return p, p.Start()
}

// Start runs it, again with the same command; it must not be running.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		select {
		case <-p.done:
		default:
			return fmt.Errorf("%s runs already", p.Name)
		}
	}
	log := os.Stderr
	if p.cfg.Log != "" {
		var err error
		if log, err = os.OpenFile(p.cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return err
		}
		defer log.Close()
	}
	cmd := exec.Command(p.cfg.Command[0], p.cfg.Command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), p.cfg.Env...)
	if p.cfg.Environ != nil {
		cmd.Env = append(cmd.Env, p.cfg.Environ()...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // an interrupt from the terminal is not for it
		Pdeathsig: syscall.SIGKILL,
	}
	var out io.Reader
	if p.cfg.Line != nil {
		var err error
		if p.in, err = cmd.StdinPipe(); err != nil {
			return err
		}
		cmd.Stdout = nil
		if out, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	// Hears the process and waits for its end; Kill and Stop wait for done.
	go p.attend(cmd, out, p.done)
	return nil
}

func (p *Process) attend(cmd *exec.Cmd, out io.Reader, done chan struct{}) {
	if out != nil {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			p.cfg.Line(lines.Bytes())
		}
		_, _ = io.Copy(io.Discard, out) // behind a line that was too long
	}
	_ = cmd.Wait() // the state has all that it says
	p.mu.Lock()
	p.code = cmd.ProcessState.ExitCode()
	p.mu.Unlock()
	close(done)
}

// Tell writes a line of JSON to the standard input of a process that converses.
func (p *Process) Tell(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := p.input().Write(append(text, '\n')); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// CloseInput ends the standard input of a process that converses, which asks it to end, and
// waits; after the grace it is killed, and that is an error.
func (p *Process) CloseInput(grace time.Duration) error {
	if !p.Running() {
		return nil
	}
	_ = p.input().Close()
	if err := p.await(grace); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

func (p *Process) input() io.WriteCloser {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in
}

// Signal the process. One that has ended is no error.
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

// Done is closed when the process that runs now has ended; nil if it was never started.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Running says that it was started and has not ended.
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

// Kill ends it as a crash would, and waits. Nothing happens if it does not run.
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
	if err := p.await(grace); err != nil {
		return fmt.Errorf("%v: %w", sig, err)
	}
	return nil
}

func (p *Process) await(grace time.Duration) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.Done():
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not end within %v", p.Name, grace)
	}
}

// LogTail is the last lines of its log.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.cfg.Log)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
