package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// process is a postmaster that runs.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has been waited for
}

func (p *process) over() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// PID of the postmaster, 0 if it does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.cmd.Process.Pid
}

// Restart starts the server where it is not running, on the same port and data,
// and returns when it answers. After Kill it waits for the orphans of the old
// one to go, since the new one refuses to start before.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && !s.process.over() {
		return nil
	}
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.startLocked(deadline)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// KeepRunning starts the server again whenever it has ended by itself, as a service
// manager does, as often as it takes, until ctx ends. What Stop or Kill ended is left.
func (s *Server) KeepRunning(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		s.mu.Lock()
		if s.process != nil && s.process.over() {
			_ = s.startLocked(time.Now().Add(startTimeout)) // the next try
		}
		s.mu.Unlock()
	}
}

func (s *Server) startLocked(deadline time.Time) error {
	logPath := filepath.Join(s.dir, "log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=on", "-c", "shared_buffers=128MB",
		"-c", "max_connections=200", "-c", "max_wal_size=1GB"}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	cmd := s.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	// Owns the waiting for the child; ends when the child does; whoever stops
	// the server waits for exited.
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // how it ended is of no interest, that it did is
	}()
	for {
		err := s.ping()
		if err == nil {
			s.process = p
			return nil
		}
		select {
		case <-p.exited:
			text, _ := os.ReadFile(logPath)
			return fmt.Errorf("postgres ended: %s", bytes.TrimSpace(text[max(0, len(text)-2000):]))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("postgres does not answer: %w", err), p.end(syscall.SIGKILL))
		}
	}
}

func (s *Server) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Stop shuts the server down in order; it hangs up on its clients. No-op if it
// does not run.
func (s *Server) Stop() error {
	return s.signal(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL)
}

// Kill ends the server as a crash would: the next start recovers from its log.
func (s *Server) Kill() error { return s.signal(syscall.SIGKILL) }

func (s *Server) signal(signals ...syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	err := s.process.end(signals...)
	if err == nil {
		s.process = nil
	}
	return err
}

// end sends one signal after the other until the process has ended.
func (p *process) end(signals ...syscall.Signal) error {
	for _, sig := range signals {
		if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("postgres process %d does not end", p.cmd.Process.Pid)
}

// NewDatabase makes an empty database and returns its DSN. It goes with the
// cluster.
func (s *Server) NewDatabase(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	s.databases++
	name := fmt.Sprintf("test_%d", s.databases)
	s.mu.Unlock()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("create a database: %w", err)
	}
	return s.DSN(name), nil
}

// CPU is the user and system time of the postmaster and its living children, to
// 10 ms each. For benchmarks.
func (s *Server) CPU() time.Duration {
	var ticks uint64
	pid := s.PID()
	for _, pid := range append(childrenOf(pid), pid) {
		fields, err := statOf(pid)
		if err != nil {
			continue // it has just ended
		}
		for _, field := range fields[11:13] { // utime, stime (proc(5))
			n, _ := strconv.ParseUint(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// statOf are the fields of /proc/PID/stat from the state on.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return nil, errors.New("short stat")
	}
	return fields, nil
}

func childrenOf(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var children []int
	for field := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			children = append(children, child)
		}
	}
	return children
}
