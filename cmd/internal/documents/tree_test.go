package documents

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
)

// tree is what exists. Folders and files are named from the root, with slashes.
type tree struct {
	root     string
	paths    map[string]bool            // folders too
	literals map[string]bool            // string constants of files that are not tests
	tests    map[string][]string        // Test…, Benchmark… and Fuzz… by folder
	testFlag map[string]map[string]bool // flags that tests define, by folder
	options  map[string]bool            // --flags of all our programs
	commands map[string]map[string]bool // words of a program's command line, by its folder
	keys     [][]string                 // of gateway.yaml and router.yaml, level by level
	fields   map[string]bool            // of JSON documents
	exported map[string]map[string]bool // what a package declares, by the package's name
	members  map[string]map[string]bool // fields and methods, by the name of their type
	targets  map[string]bool            // of the Makefile
	cited    map[string][]string        // files whose comments cite an invariant, by its number
}

// readTree reads all sources, once for all tests.
func readTree(t *testing.T) *tree {
	t.Helper()
	tr, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var read = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return nil, err
	}
	tr := &tree{
		root: root, paths: make(map[string]bool), literals: make(map[string]bool), tests: make(map[string][]string),
		testFlag: make(map[string]map[string]bool), options: make(map[string]bool), commands: make(map[string]map[string]bool),
		fields: make(map[string]bool), exported: make(map[string]map[string]bool), members: make(map[string]map[string]bool),
		targets: make(map[string]bool), cited: make(map[string][]string),
	}
	for _, s := range slices.Concat(gatewayfile.Settings(), routerfile.Settings()) {
		tr.keys = append(tr.keys, strings.Split(s.Key, "."))
	}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, file)
		name = filepath.ToSlash(name)
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		tr.paths[name] = true
		if strings.HasSuffix(name, ".go") {
			return tr.readGo(name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllSubmatch(makefile, -1) {
		tr.targets[string(m[1])] = true
	}
	return tr, nil
})

func (tr *tree) readGo(name string) error {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(tr.root, name), nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return err
	}
	folder, isTest := path.Dir(name), strings.HasSuffix(name, "_test.go")
	pkg := strings.TrimSuffix(file.Name.Name, "_test")
	for _, group := range file.Comments {
		for _, number := range anInvariant.FindAllString(group.Text(), -1) {
			if !slices.Contains(tr.cited[number], name) {
				tr.cited[number] = append(tr.cited[number], name)
			}
		}
	}
	for _, d := range file.Decls {
		tr.declare(pkg, folder, isTest, d)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && !isTest {
				tr.literals[text] = true
			}
		case *ast.Field:
			tr.tag(folder, n)
		case *ast.CallExpr:
			tr.flag(folder, n)
		}
		return true
	})
	return nil
}

func (tr *tree) declare(pkg, folder string, isTest bool, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			add(tr.members, receiver(d.Recv.List[0].Type), d.Name.Name)
			return
		}
		add(tr.exported, pkg, d.Name.Name)
		if isTest && testName.MatchString(d.Name.Name) {
			tr.tests[folder] = append(tr.tests[folder], d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				add(tr.exported, pkg, s.Name.Name)
				tr.structure(s)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					add(tr.exported, pkg, n.Name)
				}
			}
		}
	}
}

func (tr *tree) structure(s *ast.TypeSpec) {
	var list *ast.FieldList
	switch of := s.Type.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, n := range f.Names {
			add(tr.members, s.Name.Name, n.Name)
		}
	}
}

// tag reads what a field is called in a JSON document and on a command line (kong).
func (tr *tree) tag(folder string, f *ast.Field) {
	if f.Tag == nil || len(f.Names) != 1 {
		return
	}
	text, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return
	}
	tag := reflect.StructTag(text)
	if field, _, _ := strings.Cut(tag.Get("json"), ","); field != "" {
		tr.fields[field] = true
	}
	if !strings.HasPrefix(folder, "cmd/") {
		return
	}
	name := tag.Get("name")
	if name == "" {
		name = kebab(f.Names[0].Name)
	}
	if _, is := tag.Lookup("cmd"); is {
		add(tr.commands, folder, name)
		return
	}
	tr.options["--"+name] = true
	tr.options["--no-"+name] = true
}

// flag reads a flag that a test binary has: flag.Bool("long", …).
func (tr *tree) flag(folder string, call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) < 2 {
		return
	}
	if of, ok := sel.X.(*ast.Ident); !ok || of.Name != "flag" {
		return
	}
	for _, a := range call.Args[:2] { // flag.BoolVar has its name second
		if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			name, _ := strconv.Unquote(lit.Value)
			add(tr.testFlag, folder, name)
			return
		}
	}
}

func add(all map[string]map[string]bool, of, name string) {
	if all[of] == nil {
		all[of] = make(map[string]bool)
	}
	all[of][name] = true
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// kebab is kong's name for a field: OpsListen is ops-listen.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		starts := i > 0 && unicode.IsUpper(r) &&
			(unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if starts {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
