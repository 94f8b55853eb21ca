package historytest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

// crashPlace names, in the environment of a child, the data that it writes to.
const crashPlace = "SPILLWAY_HISTORYTEST_CRASH_PLACE"

const crashChannels = 20

// RunCrashWriter turns this process into the writer of a crash test if it was
// started as one, and then does not return. TestMain calls it first.
func RunCrashWriter(open func(place string) (history.Store, error)) {
	place := os.Getenv(crashPlace)
	if place == "" {
		return
	}
	s, err := open(place)
	if err == nil {
		err = CrashWrite(context.Background(), s, os.Stdout)
	}
	fmt.Fprintln(os.Stderr, "crash writer:", err)
	os.Exit(1)
}

// CrashWrite appends batches of runs until it fails, and tells each run once it
// is acked: "channel offset run-name" of its first event, one a line.
func CrashWrite(ctx context.Context, s history.Store, acked io.Writer) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for batch := 0; ; batch++ {
		var queries []history.HeadQuery
		for _, n := range random.Perm(crashChannels)[:1+random.IntN(8)] {
			queries = append(queries, history.HeadQuery{Channel: fmt.Sprintf("crash:%d", n)})
		}
		heads, err := s.Heads(ctx, queries)
		if err != nil {
			return err
		}
		var runs []history.Run
		for i, h := range heads {
			run := runAfter(h, 1+random.IntN(5))
			name := fmt.Sprintf("%x/%d/%d", random.Uint64(), batch, i)
			for j := range run.Events {
				e := &run.Events[j]
				e.Data = fmt.Appendf(nil, "%s %d %d", name, j, len(run.Events))
				e.Scope, e.Key = "b", fmt.Sprint(name, j)
			}
			runs = append(runs, run)
		}
		outcomes, err := s.Append(ctx, runs)
		if err != nil {
			return err
		}
		var told strings.Builder
		for i, run := range runs {
			if outcomes[i] == history.Stored {
				name, _, _ := strings.Cut(string(run.Events[0].Data), " ")
				fmt.Fprintf(&told, "%s %d %s\n", run.Channel, run.Events[0].Offset, name)
			}
		}
		if _, err := io.WriteString(acked, told.String()); err != nil {
			return err
		}
	}
}

// ack is a run that a writer told of.
type ack struct {
	channel string
	offset  uint64
	run     string
}

func parseAck(line string) (ack, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return ack{}, fmt.Errorf("line %q", line)
	}
	offset, err := strconv.ParseUint(fields[1], 10, 64)
	return ack{channel: fields[0], offset: offset, run: fields[2]}, err
}

// Crash kills writers with SIGKILL in the middle of their batches, several times
// over the same data: one, or two processes that write to the same channels.
// After each: what was acked is there, what was not is there whole or not at all,
// offsets have no holes. (I1, I2)
func Crash(t *testing.T, place string, open Open) {
	random := seeded(t)
	var acks []ack
	for round := range 5 {
		told := make([][]ack, 1+round%2)
		var group errgroup.Group
		for i := range told {
			after := 20 + random.IntN(150)
			// Owns told[i]; ends with the process that it kills; waited for below.
			group.Go(func() (err error) {
				told[i], err = killedWriter(place, after)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, some := range told {
			acks = append(acks, some...)
		}
		s, err := open()
		if err != nil {
			t.Fatalf("open after a crash: %v", err)
		}
		checkCrash(t, s, acks)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killedWriter runs this test binary as a writer, kills it after some acks, and
// returns all that it told.
func killedWriter(place string, after int) ([]ack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), crashPlace+"="+place)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	acks, err := readAcks(bufio.NewReader(out), after, cmd.Process.Kill)
	_ = cmd.Wait() // killed
	if err == nil && len(acks) < after {
		err = fmt.Errorf("the writer ended by itself after %d acks", len(acks))
	}
	return acks, err
}

// readAcks reads what a writer tells, and kills it after some.
func readAcks(lines *bufio.Reader, after int, kill func() error) ([]ack, error) {
	var acks []ack
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return acks, nil // a line cut off was not told
		}
		a, err := parseAck(line)
		if err != nil {
			return acks, errors.Join(err, kill())
		}
		if acks = append(acks, a); len(acks) == after {
			if err := kill(); err != nil {
				return acks, err
			}
		}
	}
}

// checkCrash compares the store with what was acked.
func checkCrash(t testing.TB, s history.Store, acks []ack) {
	t.Helper()
	runs := make(map[string]ack) // run -> where it begins
	for n := range crashChannels {
		channel := fmt.Sprintf("crash:%d", n)
		p, events := all(t, s, channel)
		if p.Exists && p.First != 1 {
			t.Fatalf("%s begins at %d", channel, p.First)
		}
		for len(events) > 0 {
			name, length := wholeRun(t, channel, events)
			if _, twice := runs[name]; twice {
				t.Fatalf("run %s is stored twice", name)
			}
			runs[name] = ack{channel: channel, offset: events[0].Offset, run: name}
			events = events[length:]
		}
	}
	for _, a := range acks {
		if runs[a.run] != a {
			t.Fatalf("acked %+v, stored %+v", a, runs[a.run])
		}
	}
	t.Logf("%d runs acked, %d stored", len(acks), len(runs))
}

// wholeRun demands that events begin with a run from its first event to its last.
func wholeRun(t testing.TB, channel string, events []history.Event) (string, int) {
	t.Helper()
	var name string
	var at, length int
	for i := 0; i == 0 || i < length; i++ {
		var n string
		if i == len(events) {
			t.Fatalf("%s: run %s has %d events of %d", channel, name, i, length)
		}
		if _, err := fmt.Sscanf(string(events[i].Data), "%s %d %d", &n, &at, &length); err != nil {
			t.Fatalf("%s: %q: %v", channel, events[i].Data, err)
		}
		if at != i || i > 0 && n != name {
			t.Fatalf("%s offset %d: event %d of run %s where %d of %s belongs", channel, events[i].Offset, at, n, i, name)
		}
		name = n
	}
	return name, length
}

// CrashServer lets several writers of this process append while the database
// server is killed and started again, several times, under them.
func CrashServer(t *testing.T, open Open, kill, restart func() error) {
	s := opened(t, open)
	var acks []ack
	for range 3 {
		acks = append(acks, writeUntilKilled(t, s, kill)...)
		if err := restart(); err != nil {
			t.Fatalf("restart: %v", err)
		}
		waitFor(t, s)
		checkCrash(t, s, acks)
	}
}

const crashWriters = 3

func writeUntilKilled(t *testing.T, s history.Store, kill func() error) []ack {
	t.Helper()
	told, told2 := io.Pipe()
	ended := make(chan error, crashWriters)
	for range crashWriters {
		// Owns nothing; ends when the server is gone; waited for below. Writes
		// of whole batches to a pipe do not mix.
		go func() { ended <- CrashWrite(callContext(t), s, told2) }()
	}
	// Owns the killing side of the pipe; ends with the last writer.
	go func() {
		for range crashWriters {
			<-ended
		}
		_ = told2.Close() // never fails
	}()
	var acks []ack
	lines := bufio.NewScanner(told)
	for lines.Scan() {
		a, err := parseAck(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		acks = append(acks, a)
		if len(acks) == 200 {
			if err := kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(acks) < 200 {
		t.Fatalf("the writers ended by themselves after %d acks", len(acks))
	}
	return acks
}

// waitFor polls until the store answers again, without being opened anew.
func waitFor(t testing.TB, s history.Store) {
	t.Helper()
	deadline := time.Now().Add(callTimeout)
	for {
		_, err := s.Read(callContext(t), []history.Range{{Channel: "crash:0", Limit: 1}})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the store does not come back: %v", err)
		}
		<-time.After(20 * time.Millisecond)
	}
}
