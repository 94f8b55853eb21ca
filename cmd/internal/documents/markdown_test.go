package documents

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// document is one *.md file, in the parts that can name something.
type document struct {
	name   string // from the root
	folder string
	code   []span // in backticks
	links  []span // targets
	blocks []block
	tests  []span // names of tests, wherever they are
	heads  map[string]bool
}

type span struct {
	text string
	line int
}

type block struct {
	language string
	line     int // of its first line
	lines    []string
}

var (
	inBackticks = regexp.MustCompile("`([^`]+)`")
	link        = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	aCommand    = regexp.MustCompile("`[^`]* [^`]+`")
	notInSlug   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// readDocuments reads all but the change log.
func readDocuments(t *testing.T, tr *tree) []*document {
	t.Helper()
	var all []*document
	for name := range tr.paths {
		if !strings.HasSuffix(name, ".md") || name == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(tr.root, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parse(name, string(text)))
	}
	if len(all) == 0 {
		t.Fatal("there are no documents")
	}
	return all
}

func parse(name, text string) *document {
	d := &document{name: name, folder: path.Dir(name), heads: make(map[string]bool)}
	lines := strings.Split(text, "\n")
	open := -1
	for i, line := range lines {
		if fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			lines[i] = ""
			if open < 0 {
				open = i + 1
				d.blocks = append(d.blocks, block{language: fence, line: i + 2})
			} else {
				open = -1
			}
			continue
		}
		if open >= 0 {
			b := &d.blocks[len(d.blocks)-1]
			b.lines, lines[i] = append(b.lines, line), ""
			continue
		}
		if strings.HasPrefix(line, "#") {
			d.heads[slug(strings.TrimLeft(line, "# "))] = true
		}
	}
	rest := strings.Join(lines, "\n") // a span may go on in the next line
	d.code, d.links = spans(inBackticks, rest), spans(link, rest)
	d.tests = spans(aTest, aCommand.ReplaceAllStringFunc(rest, func(s string) string {
		return strings.Repeat("\n", strings.Count(s, "\n")) // patterns of -run are looked at there
	}))
	return d
}

func spans(of *regexp.Regexp, text string) []span {
	var all []span
	for _, at := range of.FindAllStringSubmatchIndex(text, -1) {
		inner := text[at[2]:at[3]]
		if strings.Contains(inner, "\n\n") {
			continue // a lone backtick
		}
		all = append(all, span{strings.Join(strings.Fields(inner), " "), 1 + strings.Count(text[:at[2]], "\n")})
	}
	return all
}

// slug is the anchor of a heading.
func slug(heading string) string {
	return strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}
