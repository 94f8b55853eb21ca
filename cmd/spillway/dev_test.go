package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"go.uber.org/goleak"
)

// asSpillway in the environment makes the test binary the command itself.
const asSpillway = "SPILLWAY_TEST_AS_COMMAND=1"

func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if v == asSpillway {
			os.Exit(realMain(os.Args[1:]))
		}
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asSpillway)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// spillway runs a command and returns its output, its errors and its exit code.
func spillway(t *testing.T, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	cmd := command(t, args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), code
}

// dev is a running `spillway dev` with one edge on ports of its own.
type dev struct {
	cmd          *exec.Cmd
	server, edge string
	curl         string // the example, as printed
}

func startDev(t *testing.T, data string) *dev {
	t.Helper()
	d := &dev{cmd: command(t, "dev", "--edges", "1", "--data", data, "--ws-port", "0", "--grpc-port", "0", "--http-port", "0", "--ops-port", "0")}
	d.cmd.Stderr = os.Stderr
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) > 0 && words[0] == "curl" {
			d.curl = strings.TrimSpace(lines.Text())
		}
		for i, w := range words {
			switch {
			case w == "--server":
				d.server = words[i+1]
			case w == "--edge":
				d.edge = words[i+1]
			}
		}
		if strings.HasPrefix(lines.Text(), "ctrl-C") {
			break
		}
	}
	if d.server == "" || d.edge == "" {
		_ = d.cmd.Process.Kill()
		t.Fatalf("dev did not say where it listens: %v", d.cmd.Wait())
	}
	return d
}

func (d *dev) interrupt(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("dev ended with %v", err)
	}
}

// Data outlives a kill -9, and the next dev starts at once although the old members'
// leases are not over.
func TestDevWithDataSurvivesAKill(t *testing.T) {
	data := t.TempDir()
	d := startDev(t, data)
	lines := `{"n":1}` + "\n\n" + `{ "n" : 2 }` + "\n" + `"three"` + "\n"
	out, errs, code := spillway(t, lines, "publish", "--server", d.server, "import:a", "-", "--lines", "--json")
	if code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(out, `"offset":3`) {
		t.Fatalf("publish: %d %s%s", code, out, errs)
	}
	if _, errs, code := spillway(t, "", "dev", "--data", data, "--edges", "1", "--ws-port", "0", "--grpc-port", "0", "--http-port", "0", "--ops-port", "0"); code != 2 || !strings.Contains(errs, "in use by another process") {
		t.Errorf("a second dev in the same folder: %d %s", code, errs)
	}
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait()

	d = startDev(t, data)
	defer d.interrupt(t)
	out, errs, code = spillway(t, "", "history", "--server", d.server, "import:a", "--limit", "2")
	if code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, `:1 {"n":1}`+"\n") || !strings.Contains(out, `:2 {"n":2}`+"\n") {
		t.Errorf("history: %d %s%s", code, out, errs)
	}
	token, errs, code := spillway(t, "", "token", "--sub", "ann", "--channels", "import:*", "--secret-file", filepath.Join(data, "token-secret"))
	if code != 0 || strings.Count(token, ".") != 2 {
		t.Fatalf("token: %d %s%s", code, token, errs)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	followAsUser(t, d, file)
}

// A drain in dev cuts nobody off who is a little slow to move. When the last edge has
// been drained, dev goes on.
func TestADrainInDevLeavesClientsTime(t *testing.T) {
	d := startDev(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, _, err := ws.Dial(ctx, d.edge)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := wsutil.WriteClientText(conn, []byte(`{"type":"connect","id":1,"attempt":1}`)); err != nil {
		t.Fatal(err)
	}
	drained := make(chan string, 1)
	go func() { // ends with the command, waited for below
		out, errs, _ := spillway(t, "", "drain", "edge-1", "--server", d.server)
		drained <- out + errs
	}()
	var hint struct {
		Type       string `json:"type"`
		DeadlineMS int    `json:"deadline_ms"`
	}
	for hint.Type != "reconnect" {
		text, err := wsutil.ReadServerText(conn)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := bytes.Cut(text, []byte("\n"))
		if err := json.Unmarshal(line, &hint); err != nil {
			t.Fatal(err)
		}
	}
	if hint.DeadlineMS < 1000 {
		t.Errorf("a client has %d ms to move", hint.DeadlineMS)
	}
	conn.Close()
	if said := <-drained; !strings.Contains(said, "1 moved") && !strings.Contains(said, "1 of 1") && !strings.Contains(said, "left by themselves") {
		t.Errorf("drain said %s", said)
	}
	if out, errs, code := spillway(t, "", "nodes", "--server", d.server); code != 0 || strings.Contains(out, "edge-1") {
		t.Errorf("nodes after the drain: %d %s%s", code, out, errs)
	}
	d.interrupt(t)
}

// The example is run by a shell, as who reads it would.
func TestDevPrintsACurlThatWorks(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("curl is not installed")
		}
		t.Skip("curl is not installed")
	}
	d := startDev(t, t.TempDir())
	defer d.interrupt(t)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", d.curl).Output()
	if err != nil || !strings.Contains(string(out), `"offset":1`) {
		t.Errorf("%s: %v %s", d.curl, err, out)
	}
	if out, errs, code := spillway(t, "", "history", "--server", d.server, "chat:room-7"); code != 0 || !strings.Contains(out, `{"text":"from curl"}`) {
		t.Errorf("history: %d %s%s", code, out, errs)
	}
}

// followAsUser reads the newest two events of the channel, then is interrupted.
func followAsUser(t *testing.T, d *dev, tokenFile string) {
	t.Helper()
	cmd := command(t, "subscribe", "--edge", d.edge, "--token-file", tokenFile, "--last", "2", "import:a")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for _, want := range []string{`:2 {"n":2}`, `:3 "three"`} {
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), want) {
			t.Errorf("got %q, want …%s", lines.Text(), want)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("subscribe ended with %v", err)
	}
}

func TestLinesStopAtTheFirstThatIsWrong(t *testing.T) {
	d := startDev(t, t.TempDir())
	defer d.interrupt(t)
	_, errs, code := spillway(t, "1\n2\nthree\n4\n", "publish", "--server", d.server, "import:a", "-", "--lines")
	if code != 2 || !strings.Contains(errs, "line 3: ") || !strings.Contains(errs, "2 events were published before it") {
		t.Errorf("%d %s", code, errs)
	}
	out, _, _ := spillway(t, "", "history", "--server", d.server, "import:a")
	if strings.Count(out, "\n") != 2 {
		t.Errorf("history has %s", out)
	}
}

func TestARouterThatIsNotThereIsOneLine(t *testing.T) {
	_, errs, code := spillway(t, "", "nodes", "--server", "127.0.0.1:1")
	if code != 1 || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no router answers") {
		t.Errorf("%d %s", code, errs)
	}
}

// writerFunc is called for every write.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// A whole cluster starts and stops within this process; nothing of it is left.
func TestDevLeavesNoGoroutineBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Setenv("TMPDIR", t.TempDir())
	for range 2 { // the second time shows what the first only started once
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := devCmd{Edges: 2, LogLevel: "error", out: writerFunc(cancel)}
		if err := c.Run(&env{ctx: ctx, abort: t.Context()}); err != nil {
			t.Error(err)
		}
		if ctx.Err() != context.Canceled {
			t.Error("it was never ready")
		}
		cancel()
	}
	goleak.VerifyNone(t, before)
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
