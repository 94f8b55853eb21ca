package layout

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// room is a package of a tier and what it may import of the same tier.
type room struct {
	may []string
	why string // printed when it imports another one
}

var gatewayRooms = map[string]room{
	"gateway": {
		may: []string{
			"admission", "auth", "door", "feed", "leave", "load", "settings", "targets", "ticket", "internal/inbox", "internal/meter",
			"internal/poller", "internal/pool", "internal/sendq", "internal/tlsconn", "internal/wsframe",
		},
		why: "the root joins the rooms; the bus, the routers' streams and the SDK are given to it by cmd",
	},
	"door": {
		may: []string{
			"admission", "auth", "load", "settings", "targets", "ticket", "internal/inbox", "internal/meter",
			"internal/poller", "internal/tlsconn", "internal/wsframe",
		},
		why: "the door ends where a socket is admitted: it knows no conn, session, channel or drain",
	},
	"leave": {
		may: []string{"load", "settings", "targets", "internal/meter"},
		why: "what leaves gives orders and gets counts: it touches no socket, and what the door decides is not its own",
	},
	"feed":             {why: "the channel table knows no client: its sinks are an interface"},
	"admission":        {why: "admission is pure: it decides, the door acts"},
	"settings":         {may: []string{"admission"}, why: "settings are data and rules, which routers check too"},
	"targets":          {why: "targets reads the membership only, and stands below all who send clients somewhere"},
	"load":             {why: "load counts what others name, and stands below all who count"},
	"auth":             {why: "credentials are checked without knowing for whom"},
	"ticket":           {may: []string{"auth"}, why: "a ticket holds an identity (auth), and nothing of how it came about"},
	"bus":              {may: []string{"feed"}, why: "an adapter knows the interface it serves, and no other adapter"},
	"upstream":         {may: []string{"feed"}, why: "an adapter knows the interface it serves, and no other adapter"},
	"client":           {why: "an SDK stands alone: it drives the edge's tests, and shares no code with it"},
	"internal/poller":  {why: "readiness and bytes only, no policy"},
	"internal/tlsconn": {may: []string{"internal/poller"}, why: "TLS over the poller's conns, no policy"},
	"internal/sendq":   {why: "bytes and their order only, no policy"},
	"internal/wsframe": {why: "RFC 6455 only, no policy"},
	"internal/inbox":   {why: "a queue between goroutines, no policy"},
	"internal/pool":    {why: "jobs on a few goroutines, no policy"},
	"internal/meter":   {why: "makes metrics for rooms that it does not know"},
}

// References between the rooms of a tier run one way, as the tables say.
func TestRoomsOfGateway(t *testing.T) { checkRooms(t, "gateway", gatewayRooms) }

// checkRooms compares what the packages of a tier import, tests aside, with a table.
func checkRooms(t *testing.T, tier string, rooms map[string]room) {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./"+tier+"/...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	name := func(pkg string) string { return strings.TrimPrefix(strings.TrimPrefix(pkg, module+tier), "/") }
	within := func(name string) string { first, _, _ := strings.Cut(name, "/"); return first }
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		from := name(words[0])
		if from == "" {
			from = tier
		}
		r, known := rooms[from]
		if !known { // a package below a room is a part of it
			r, known = rooms[within(from)]
		}
		if !known {
			t.Errorf("%s is in no table: say what it may import, and why", words[0])
			continue
		}
		for _, need := range words[1:] {
			if !strings.HasPrefix(need+"/", module+tier+"/") {
				continue
			}
			if to := name(need); !slices.Contains(r.may, to) && (within(to) != within(from) || within(to) == "internal") {
				t.Errorf("%s imports %s: %s", words[0], need, r.why)
			}
		}
	}
}
