// Package pgserver runs throw-away PostgreSQL clusters: a real server, its data in a
// temporary folder, on a free port of 127.0.0.1, with fsync on unless told otherwise.
//
// Package pgtest gives them to tests, cmd/drill/internal/cluster to drills. A Server is one
// postmaster process of ours; it can be killed and started again on the same port and
// data. Each is stopped by its process id, and ends with the process that started it.
//
// It runs the newest version that is installed, or that of the folder in the variable
// PGSERVER_BIN. PostgreSQL refuses to run as root: then it runs as the user "postgres"
// or, where no package has made that one, "nobody".
//
// Left out on purpose: TLS, replication.
package pgserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	superuser    = "spillway"
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
)

// binVariable names a folder with initdb and postgres to be used instead of what is
// installed. make test-postgres sets it.
const binVariable = "PGSERVER_BIN"

// ErrNotInstalled is New's error where there is no PostgreSQL.
var ErrNotInstalled = errors.New("PostgreSQL is not installed (initdb and postgres in /usr/lib/postgresql/*/bin or PATH)")

// Server is one cluster. Its methods may be called from any goroutine.
type Server struct {
	// Immutable after New.
	bin        string // folder of initdb and postgres
	dir        string // ours: data, password, sockets, log
	walDir     string // of the write-ahead log; "": with the data
	password   string
	port       int
	settings   []string            // as postgres -c takes them
	credential *syscall.Credential // nil: the user of this process

	mu        sync.Mutex // guards all below; held while the server starts or stops
	process   *process   // nil: not running
	databases int
	removed   bool
}

// New makes and starts a cluster; Remove ends it. The settings, name=value, go over
// those that it has anyway.
func New(settings ...string) (*Server, error) { return NewLogging("", settings...) }

// NewLogging is New with the write-ahead log in an empty folder of its own, in
// segments of 1 MiB.
func NewLogging(walDir string, settings ...string) (*Server, error) {
	bin, err := Find()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, walDir: walDir, password: rand.Text(), settings: settings}
	if os.Geteuid() == 0 {
		if s.credential, err = credentialOf("postgres", "nobody"); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp("", "spillway-pg-"); err != nil {
		return nil, err
	}
	if err := s.init(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

// Find is the folder of PostgreSQL's programs, or ErrNotInstalled.
func Find() (string, error) {
	if dir := os.Getenv(binVariable); dir != "" {
		_, err := os.Stat(filepath.Join(dir, "initdb"))
		return dir, err // a folder that was named and is not there is no reason to skip
	}
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well-formed
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, real)
		}
	}
	for i := len(candidates) - 1; i >= 0; i-- { // PATH first, then the newest
		dir := filepath.Dir(candidates[i])
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil {
			return dir, nil
		}
	}
	return "", ErrNotInstalled
}

// credentialOf the first of the users that there is.
func credentialOf(names ...string) (*syscall.Credential, error) {
	var u *user.User
	var err error
	for _, name := range names {
		if u, err = user.Lookup(name); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no other user for it: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// init makes the data. The port is free now; Restart says if it was taken since.
func (s *Server) init() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	passwordFile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password), 0o600); err != nil {
		return err
	}
	args := []string{"--pgdata=" + s.data(), "--username=" + superuser, "--pwfile=" + passwordFile,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"}
	own := []string{s.dir, passwordFile}
	if s.walDir != "" {
		args = append(args, "--waldir="+s.walDir, "--wal-segsize=1")
		own = append(own, s.walDir)
	}
	for _, path := range own {
		if err := s.Own(path); err != nil {
			return err
		}
	}
	cmd := s.command("initdb", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// Own gives a file or folder to the user that the server runs as.
func (s *Server) Own(path string) error {
	if s.credential == nil {
		return nil
	}
	return os.Chown(path, int(s.credential.Uid), int(s.credential.Gid))
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: s.credential,
		Setpgid:    true,            // an interrupt from the terminal is not the server's
		Pdeathsig:  syscall.SIGQUIT, // a process that is killed leaves no server behind
	}
	return cmd
}

// DSN of a database of the cluster; "postgres" is always there.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port that the server listens on, on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Remove stops the server and deletes its data. Idempotent.
func (s *Server) Remove() error {
	err := s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return err
	}
	s.removed = true
	return errors.Join(err, os.RemoveAll(s.dir))
}
