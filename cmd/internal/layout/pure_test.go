package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMachinesArePure holds what makes a state machine easy to test: time and
// the world come in as arguments. No goroutine is begun in these packages, no clock is
// read, no lock is held, nothing is read or sent.
func TestMachinesArePure(t *testing.T) {
	banned := []string{"sync", "net", "os", "os/exec", "log", "log/slog", "google.golang.org/grpc"}
	clocks := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker"}
	for _, folder := range []string{"router/channel", "presence/drain", "gateway/admission", "gateway/client/machine", "router/operations/settle"} {
		files, err := filepath.Glob(filepath.Join(root(t), folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", folder, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file := token.NewFileSet()
			parsed, err := parser.ParseFile(file, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, imported := range parsed.Imports {
				path := strings.Trim(imported.Path.Value, `"`)
				if slices.Contains(banned, path) {
					t.Errorf("%s/%s imports %s", folder, filepath.Base(name), path)
				}
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s begins a goroutine", file.Position(n.Pos()))
				case *ast.SelectorExpr:
					if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
						t.Errorf("%s reads the clock: time.%s", file.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
