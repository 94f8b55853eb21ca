package presence

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios log into testdata")

// Each file of testdata is a scenario: commands, and indented below each what
// the view made of it. `go test ./presence -run Scenarios -rewrite` writes the logs
// anew; read the difference.
//
//	bus up|down|deaf     the own connection; deaf: up, but nothing comes
//	list M...            a listing of the registry, at the next revision
//	restored             the registry's revision starts again from zero
//	put M..., delete M... one event each
//	speak M..., hush M... members whose figures come each second from now on, or no more
//	at SECONDS           the clock runs, in half seconds, until then
//	show                 the view and its revision
//
// M is an id ("r…" routers, else edges), "e1/2" incarnation 2, "e1=left" a state.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScenario(t, file) })
	}
}

func runScenario(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newScenario()
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "    ") {
			continue // log of an earlier run
		}
		out.WriteString(line)
		command, _, _ := strings.Cut(line, "#")
		if words := strings.Fields(command); len(words) > 0 {
			s.do(t, words)
		}
		for _, l := range s.log {
			out.WriteString("    " + l + "\n")
		}
		s.log = nil
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, got := strings.Split(string(text), "\n"), strings.Split(out.String(), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("%s:%d: the log differs from there on; it is\n%s", file, i+1, out.String())
		}
	}
}

// scenario is the world around one view.
type scenario struct {
	*view
	start, now time.Time
	rev        int64
	deaf       bool
	speakers   map[string]*Member
	log        []string
}

func newScenario() *scenario {
	start := time.Unix(1_000_000, 0)
	return &scenario{view: newView(time.Second), start: start, now: start, speakers: map[string]*Member{
		"me": {Id: "me", Role: gatewayv1.Role_ROLE_EDGE, Incarnation: 1}, // our own figures come back to us
	}}
}

func (s *scenario) do(t *testing.T, words []string) {
	verb, args := words[0], words[1:]
	switch verb {
	case "at":
		to, err := strconv.ParseFloat(args[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		s.runTo(s.start.Add(time.Duration(to * float64(time.Second))))
	case "list":
		s.rev++
		s.list(parseMembers(args), s.rev, s.now)
	case "restored":
		s.rev = 0
	case "put":
		for _, m := range parseMembers(args) {
			s.rev++
			s.put(m, s.rev, s.now)
		}
	case "delete":
		for _, m := range parseMembers(args) {
			s.rev++
			s.delete(KeyOf(m), s.rev, s.now)
			s.record()
		}
	case "speak", "hush":
		for _, m := range parseMembers(args) {
			if delete(s.speakers, m.Id); verb == "speak" {
				s.speakers[m.Id] = m
			}
		}
	case "bus":
		s.bus(args[0] != "down", s.now)
		s.deaf = args[0] == "deaf"
	case "show":
		s.log = append(s.log, fmt.Sprintf("%s; revision %d", show(s.view), s.snapshot().Revision()))
	default:
		t.Fatalf("unknown command %q", verb)
	}
	s.record()
}

func (s *scenario) runTo(end time.Time) {
	for s.now.Before(end) {
		s.now = s.now.Add(min(tickEvery, end.Sub(s.now)))
		if s.now.Sub(s.start)%time.Second == 0 && s.busUp && !s.deaf {
			for _, m := range s.speakers {
				s.heard(&Figure{Id: m.Id, Role: m.Role, Incarnation: m.Incarnation}, s.now)
			}
		}
		s.tick(s.now)
		s.record()
	}
}

// record logs what the last input did.
func (s *scenario) record() {
	for _, n := range s.take() {
		line := fmt.Sprintf("%gs %v", s.now.Sub(s.start).Seconds(), n.kind)
		if n.member != nil {
			line += " " + name(n.member)
		}
		if n.reason != DepartureNone {
			line += " (" + n.reason.String() + ")"
		}
		s.log = append(s.log, line)
	}
}

func name(m *Member) string {
	w := m.Id
	if m.Incarnation != 1 {
		w += "/" + strconv.FormatUint(m.Incarnation, 10)
	}
	if m.State != gatewayv1.State_STATE_SERVING {
		w += "=" + StateName(m.State)
	}
	return w
}

func show(v *view) string {
	words := []string{}
	for _, m := range v.snapshot().Members() {
		words = append(words, name(m))
	}
	sort.Strings(words)
	return strings.Join(words, " ")
}

func roleOf(id string) gatewayv1.Role {
	if strings.HasPrefix(id, "r") {
		return gatewayv1.Role_ROLE_ROUTER
	}
	return gatewayv1.Role_ROLE_EDGE
}

func parseMembers(words []string) []*Member {
	var members []*Member
	for _, w := range words {
		name, state, _ := strings.Cut(w, "=")
		id, inc, _ := strings.Cut(name, "/")
		m := &Member{Id: id, Role: roleOf(id), Incarnation: 1, State: gatewayv1.State_STATE_SERVING}
		if inc != "" {
			m.Incarnation, _ = strconv.ParseUint(inc, 10, 64)
		}
		switch state {
		case "left":
			m.State = gatewayv1.State_STATE_LEFT
		case "draining":
			m.State = gatewayv1.State_STATE_DRAINING
		}
		members = append(members, m)
	}
	return members
}

// Whatever happens: who has a lease is in the view; who still speaks on a bus
// that works is gone only if it deregistered; the revision rises exactly when
// something about a router changes.
func TestViewKeepsItsPromises(t *testing.T) {
	names := []string{"r1", "r2", "r3", "e1", "e2", "e3", "e4"}
	rapid.Check(t, func(rt *rapid.T) {
		s := newScenario()
		s.do(t, []string{"bus", "up"})
		leased, left := map[string]bool{}, map[string]bool{}
		before, revision := "", int64(0)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			verb := rapid.SampledFrom([]string{"put", "put", "leave", "delete", "list", "speak", "hush", "wait", "wait", "bus", "restored"}).Draw(rt, "verb")
			n := rapid.SampledFrom(names).Draw(rt, "member")
			switch verb {
			case "put":
				s.do(t, []string{"put", n})
				leased[n], left[n] = true, false
			case "leave":
				s.do(t, []string{"put", n + "=left"})
				leased[n], left[n] = false, true
			case "delete":
				s.do(t, []string{"delete", n})
				leased[n] = false
			case "list", "restored":
				words := []string{"list"}
				for _, n := range names {
					if leased[n] = rapid.Bool().Draw(rt, n); leased[n] {
						words, left[n] = append(words, n), false
					}
				}
				if verb == "restored" {
					s.do(t, []string{"restored"})
				}
				s.do(t, words)
			case "wait":
				s.runTo(s.now.Add(time.Duration(rapid.IntRange(1, 12).Draw(rt, "halves")) * tickEvery))
			case "bus":
				s.do(t, []string{"bus", rapid.SampledFrom([]string{"up", "up", "down", "deaf"}).Draw(rt, "bus")})
			default:
				s.do(t, []string{verb, n})
			}
			present := map[string]bool{}
			routersNow := ""
			for _, m := range s.snapshot().Members() {
				present[m.Id] = true
				if m.Role == gatewayv1.Role_ROLE_ROUTER {
					routersNow += m.Id + " "
				}
			}
			for _, n := range names {
				if leased[n] && !present[n] {
					rt.Fatalf("after %s: %s has a lease and is not in the view", verb, n)
				}
				if left[n] && present[n] {
					rt.Fatalf("after %s: %s has left and is in the view", verb, n)
				}
			}
			for _, l := range s.log {
				if gone, _, ok := strings.Cut(l, " (silent)"); ok {
					if id := gone[strings.LastIndex(gone, " ")+1:]; leased[id] {
						rt.Fatalf("%s was removed with a lease", id)
					}
				}
			}
			s.log = nil
			if now := s.snapshot().Revision(); now < revision || routersNow != before && now == revision {
				rt.Fatalf("after %s: routers %q -> %q, revision %d -> %d", verb, before, routersNow, revision, now)
			} else {
				before, revision = routersNow, now
			}
		}
	})
}
