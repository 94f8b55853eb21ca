package presence

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Each file of testdata is a scenario: commands at a second, and after them
// `-> members` as the view must show them.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScenario(t, file) })
	}
}

func runScenario(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := newView()
	start := time.Unix(1_000_000, 0)
	now, rev := start, int64(0)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		rev++
		switch words[0] {
		case "at": // at SECOND: ticks once a second until then
			to, _ := strconv.ParseFloat(words[1], 64)
			for end := start.Add(time.Duration(to * float64(time.Second))); now.Before(end); {
				now = now.Add(min(time.Second, end.Sub(now)))
				v.tick(now)
			}
		case "list":
			v.list(parseMembers(words[1:]), rev, now)
		case "put":
			for _, m := range parseMembers(words[1:]) {
				v.put(m, rev, now)
			}
		case "delete":
			for _, id := range words[1:] {
				v.delete(Key{roleOf(id), id}, rev, now)
			}
		case "heard":
			for _, m := range parseMembers(words[1:]) {
				v.heardFrom(&Figure{Id: m.Id, Role: m.Role, Incarnation: m.Incarnation}, now)
			}
		case "bus":
			v.bus(words[1] == "up", now)
		case "->":
			if got, want := show(v), strings.Join(words[1:], " "); got != want {
				t.Errorf("%s:%d: %q, want %q", file, n, got, want)
			}
		default:
			t.Fatalf("%s:%d: unknown command %q", file, n, words[0])
		}
	}
}

func roleOf(id string) gatewayv1.Role {
	if strings.HasPrefix(id, "r") {
		return gatewayv1.Role_ROLE_ROUTER
	}
	return gatewayv1.Role_ROLE_EDGE
}

// parseMembers reads "r1", "e1/2" (incarnation 2), "e1=left".
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

func show(v *view) string {
	var words []string
	for _, m := range v.snapshot().Members() {
		w := m.Id
		if m.Incarnation != 1 {
			w += "/" + strconv.FormatUint(m.Incarnation, 10)
		}
		if m.State == gatewayv1.State_STATE_DRAINING {
			w += "=draining"
		}
		words = append(words, w)
	}
	sort.Strings(words)
	return strings.Join(words, " ")
}

func routers(n int) []*Member {
	var members []*Member
	for i := range n {
		members = append(members, &Member{Id: fmt.Sprint("r", i), Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING})
	}
	return members
}

func TestARouterThatLeavesMovesOnlyItsChannels(t *testing.T) {
	all := routers(5)
	before, after := NewSnapshot(all, 1), NewSnapshot(all[1:], 2)
	owned := make(map[string]int)
	for i := range 10_000 {
		channel := fmt.Sprint("chat:room-", i)
		was := before.Owner(channel)
		owned[was.Id]++
		if was.Id != "r0" && after.Owner(channel) != was {
			t.Fatalf("%s moved from %s", channel, was.Id)
		}
		if was.Id == "r0" && after.Owner(channel) != before.Ranked(channel)[1] {
			t.Fatalf("%s did not go to its next", channel)
		}
	}
	for id, n := range owned {
		if n < 1_700 || n > 2_300 {
			t.Errorf("%s owns %d of 10,000, want about 2,000", id, n)
		}
	}
	if NewSnapshot(nil, 0).Owner("a") != nil {
		t.Error("an owner without routers")
	}
}

func BenchmarkOwner(b *testing.B) {
	s := NewSnapshot(routers(5), 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Owner("chat:room-77")
	}
}
