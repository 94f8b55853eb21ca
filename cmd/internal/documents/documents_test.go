package documents

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestDocumentsNameNothingThatIsNotThere(t *testing.T) {
	tr := readTree(t)
	documents := readDocuments(t, tr)
	byName := make(map[string]*document)
	for _, d := range documents {
		byName[d.name] = d
	}
	for _, d := range documents {
		wrong := func(s span, problem string) {
			if problem != "" {
				t.Errorf("%s:%d: %s: %s", d.name, s.line, s.text, problem)
			}
		}
		for _, s := range d.code {
			wrong(s, tr.code(d, s.text))
		}
		for _, s := range d.links {
			wrong(s, tr.link(d, byName, s.text))
		}
		for _, s := range d.tests {
			wrong(s, tr.test(s.text))
		}
		for _, b := range d.blocks {
			tr.block(b, wrong)
		}
	}
}

// link takes a target within the repository, and its anchor.
func (tr *tree) link(d *document, all map[string]*document, target string) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := d
	if file != "" {
		name := path.Join(d.folder, file)
		if !tr.paths[name] {
			return "there is no such file or folder"
		}
		to = all[name]
	}
	if anchor != "" && to != nil && !to.heads[anchor] {
		return "there is no such heading"
	}
	return ""
}

// block takes commands line by line, and YAML as a whole.
func (tr *tree) block(b block, wrong func(span, string)) {
	if b.language == "yaml" {
		wrong(span{strings.Join(b.lines, " / "), b.line}, tr.yaml(strings.Join(b.lines, "\n")))
		return
	}
	for i, line := range b.lines {
		command, _, _ := strings.Cut(line, " #")
		if problem, is := tr.command(strings.TrimSpace(command)); is {
			wrong(span{strings.TrimSpace(command), b.line + i}, problem)
		}
	}
}

// The check is only worth something if it finds what is wrong.
func TestWhatIsNotThereIsFound(t *testing.T) {
	tr := readTree(t)
	d := &document{name: "gateway/DESIGN.md", folder: "gateway"}
	for _, good := range []string{
		"cmd/internal/documents", "feed/*.go", "edge.go", "limits.max_conns", "SPILLWAY_LIMITS__MAX_CONNS", "spillway_gateway_conns", "/v1/ws",
		"go test ./cmd/internal/documents -run Found -v", "go run ./cmd/spillway dev", "spillway drain NODE --dry-run", "make lint", "--dry-run",
		"wire.CheckChannel", "store: {sqlite: history.db}", "namespaces: {chat: {history_size: 1}}", "rebalance.*", "naming/endpoints", "option httpchk GET /readyz", "spillway_gateway_refused_total{reason}",
	} {
		if problem := tr.code(d, good); problem != "" {
			t.Errorf("%s: %s", good, problem)
		}
	}
	for _, bad := range []string{
		"cmd/internal/nowhere", "feed/*.rs/x.go", "nowhere.go", "limits.max_cons", "SPILLWAY_LIMITS__MAX_CONS", "spillway_gateway_cons", "/v1/sw",
		"go test ./cmd/internal/nowhere", "go test ./cmd/internal/documents -run Nowhere", "go test ./cmd/internal/documents -args -nowhere",
		"go run ./cmd/nowhere", "go run ./cmd/spillway nowhere", "spillway drain NODE --nowhere", "make nowhere", "--nowhere", "wire.Nowhere",
		"store: {nowhere: history.db}", "namespaces: {chat: {nowhere: 1}}", "limits.listen", "… -run Nowhere", "spillway_gateway_refused_total{nolabel}", "Edge.nowhere",
	} {
		if tr.code(d, bad) == "" {
			t.Errorf("%s is let pass", bad)
		}
	}
	if tr.test("TestNowhere") == "" || tr.test("TestWhatIsNot…") != "" || tr.link(d, nil, "nowhere.md") == "" {
		t.Error("a test or link that is not there is let pass, or one that is there is not")
	}
}

// Comments cite invariants by number. ARCHITECTURE.md says what each number means.
func TestCitedInvariantsAreDefined(t *testing.T) {
	tr := readTree(t)
	text, err := os.ReadFile(filepath.Join(tr.root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	defined := make(map[string]bool)
	for _, number := range anInvariant.FindAllString(string(text), -1) {
		defined[number] = true
	}
	for number, files := range tr.cited {
		if !defined[number] {
			t.Errorf("%s is cited in %s, and ARCHITECTURE.md does not define it", number, strings.Join(files, ", "))
		}
	}
}

// A design that is longer than this is not read. Figures, and what was measured once, have
// their place in FIGURES.md.
func TestDesignsAreShort(t *testing.T) {
	const most = 2_500
	tr := readTree(t)
	for name := range tr.paths {
		if path.Base(name) != "DESIGN.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(tr.root, name))
		if err != nil {
			t.Fatal(err)
		}
		if words := len(strings.Fields(string(text))); words > most {
			t.Errorf("%s has %d words, at most %d are read", name, words, most)
		}
	}
}
