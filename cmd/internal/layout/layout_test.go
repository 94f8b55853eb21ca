// Package layout checks the shape of the repository: who may import whom, what a
// lean binary must not link, and what stands at the top level.
package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/spillway-io/spillway/"

// deps lists what a pattern's packages need, and what their tests import.
func deps(t *testing.T, pattern string) map[string][]string {
	t.Helper()
	return list(t, `{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, pattern)
}

// list runs go list: the first word of each line is a package, the others belong to it.
func list(t *testing.T, format, pattern string) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", format, pattern)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pattern, err)
	}
	all := make(map[string][]string)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(line)
		all[words[0]] = words[1:]
	}
	return all
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsGoOneWay(t *testing.T) {
	// A tier may need those named here and itself.
	allowed := map[string][]string{
		"proto":    {},
		"presence": {"proto"},
		"router":   {"proto", "presence"},
		"gateway":  {"proto", "presence"},
		"cmd":      {"proto", "presence", "router", "gateway"},
	}
	for pkg, needs := range deps(t, "./...") {
		tier, _, _ := strings.Cut(strings.TrimPrefix(pkg, module), "/")
		for _, need := range needs {
			rest, ours := strings.CutPrefix(need, module)
			if !ours {
				continue
			}
			of, _, _ := strings.Cut(rest, "/")
			if of != tier && !slices.Contains(allowed[tier], of) {
				t.Errorf("%s needs %s: imports go proto <- presence <- {router, gateway} <- cmd", pkg, need)
			}
		}
	}
	for pkg, needs := range deps(t, "./gateway/client/...") {
		for _, need := range needs {
			if strings.HasPrefix(need, module+"presence") {
				t.Errorf("%s needs %s: an SDK needs the proto tier only", pkg, need)
			}
		}
	}
}

func TestProductionBinariesAreLean(t *testing.T) {
	for pattern, banned := range map[string][]string{
		"./cmd/gateway":  {module + "cmd/drill", "github.com/nats-io/nats-server", "go.etcd.io/etcd/server", "modernc.org/sqlite", "github.com/jackc/pgx"},
		"./cmd/router":   {module + "cmd/drill", "github.com/nats-io/nats-server", "go.etcd.io/etcd/server"},
		"./cmd/spillway": {module + "cmd/drill"},
	} {
		for pkg, needs := range deps(t, pattern) {
			for _, need := range needs {
				for _, b := range banned {
					if strings.HasPrefix(need, b) {
						t.Errorf("%s links %s", pkg, need)
					}
				}
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	allowed := []string{
		"proto", "presence", "router", "gateway", "cmd", "deploy", "go.mod", "go.sum", "buf.yaml", "README.md", "ARCHITECTURE.md",
		"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "bin",
	}
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(allowed, e.Name()) {
			t.Errorf("%s does not belong to the top level", e.Name())
		}
	}
}

// TestRoomsOfTheRouter holds which package below router may import which other one. The
// table is the whole list: whoever wants another arrow writes its reason here first. The
// root joins them all; no room imports the root.
func TestRoomsOfTheRouter(t *testing.T) {
	type arrow struct{ to, reason string }
	allowed := map[string][]arrow{
		"history":           {},
		"bus":               {},
		"views":             {},
		"operations/settle": {},
		"operations":        {{"operations/settle", "it feeds the tracker and asks it"}},
		"namespace":         {{"history", "retention is told to the store in its words"}},
		"channel": {
			{"namespace", "a channel works by the settings of its namespace"},
			{"history", "it names events, heads and runs in the store's words"},
			{"views", "whose turn it is depends on who owns it in a view"},
		},
		"table": {
			{"channel", "its shards own the channels and carry their actions out"},
			{"namespace", "it makes channels with their settings"},
			{"views", "it shows its channels the newest view"},
		},
		"renewal": {
			{"history", "it renews rows of the store"},
			{"channel", "what was shown is a position of a channel"},
		},
		"writer": {
			{"channel", "it is given runs and brings them back"},
			{"history", "it appends to the store"},
			{"renewal", "a head that was read may be below what was shown"},
			{"views", "what it reads is true as of a view"},
		},
		"backfill": {
			{"channel", "it is given questions and brings results"},
			{"history", "it reads from the store"},
			{"renewal", "a head that was read may be below what was shown"},
		},
		"handover": {
			{"channel", "it carries what channels hold"},
			{"namespace", "what comes must be of a namespace that is known here"},
			{"views", "who gives and who gets is in the view"},
		},
		"retention": {
			{"namespace", "what is to be kept stands there"},
			{"history", "it deletes from the store"},
			{"views", "one router deletes for all: the owner of a name"},
		},
		"api": {
			{"channel", "publications and questions are its words"},
			{"namespace", "calls are admitted by it"},
		},
	}
	for pkg, needs := range imports(t, "./router/...") {
		room := strings.TrimPrefix(strings.TrimPrefix(pkg, module+"router"), "/")
		if room == "" {
			continue
		}
		arrows, known := allowed[room]
		if strings.HasPrefix(room, "history/") {
			arrows, known = []arrow{{"history", "adapters and their tests"}}, true
		}
		if !known {
			t.Errorf("router/%s is not in the table of rooms", room)
		}
		for _, need := range needs {
			to, ours := strings.CutPrefix(need, module+"router")
			if to = strings.TrimPrefix(to, "/"); !ours || strings.HasPrefix(room, "history/") && strings.HasPrefix(to, "history") {
				continue
			}
			if !slices.ContainsFunc(arrows, func(a arrow) bool { return a.to == to }) {
				t.Errorf("router/%s imports router/%s: it may import only %v", room, to, arrows)
			}
		}
	}
}

// imports lists what a pattern's packages import themselves, without their tests.
func imports(t *testing.T, pattern string) map[string][]string {
	t.Helper()
	return list(t, `{{.ImportPath}} {{join .Imports " "}}`, pattern)
}
