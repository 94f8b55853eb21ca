package documents

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	anInvariant = regexp.MustCompile(`\bI1?[0-9]\b`)
	testName    = regexp.MustCompile(`^(Test|Benchmark|Fuzz)[A-Z]\w*$`)
	aTest       = regexp.MustCompile(`\b((?:Test|Benchmark|Fuzz)[A-Z]\w+…?)`)
	aPath       = regexp.MustCompile(`^[A-Za-z.][\w.*-]*(/[\w.*-]+)*/?$`)
	anEnding    = regexp.MustCompile(`\.(go|md|proto|sh|txt|json|sql)$`)
	aKey        = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.([a-z][a-z0-9_]*|\*))+$`)
	anEnv       = regexp.MustCompile(`^SPILLWAY_[A-Z0-9_]+$`)
	aName       = regexp.MustCompile(`^([A-Za-z]\w*)\.([A-Za-z]\w*)$`)
	aMetric     = regexp.MustCompile(`^(spillway_[a-z0-9_]+|(?:\.\.\.|…)?_[a-z0-9_]+|[a-z0-9_]+_total)(\*?)(\{.*\})?$`)
	aLabel      = regexp.MustCompile(`([a-z_]+)(?:="([^"]*)")?`)
	endpoint    = regexp.MustCompile(`^(?:(?:GET|POST|PUT|DELETE) )?(/(?:v1|healthz|readyz|metrics|debug)[\w/.]*)`)
	quoted      = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|\S)+`)
)

// programs are those of the tree, by the names that documents give them.
var programs = map[string]string{
	"spillway": "cmd/spillway", "bin/spillway": "cmd/spillway", "bin/gateway": "cmd/gateway", "bin/router": "cmd/router",
	"bin/drill": "cmd/drill", "./cmd/spillway": "cmd/spillway", "./cmd/drill": "cmd/drill", "./cmd/gateway": "cmd/gateway", "./cmd/router": "cmd/router",
}

// goTestFlags are those of go test that documents use.
var goTestFlags = []string{"run", "bench", "benchtime", "benchmem", "v", "race", "timeout", "count", "args", "fuzz", "fuzztime", "short", "shuffle",
	"cpuprofile", "memprofile", "rapid.checks", "rapid.seed", "C", "o", "tags"}

// code says what is wrong with a span in backticks; empty: nothing.
func (tr *tree) code(d *document, text string) string {
	switch {
	case strings.HasPrefix(text, "--"):
		return tr.flags(text)
	case strings.HasPrefix(text, "… -"), regexp.MustCompile(`^-[a-z]`).MatchString(text):
		return tr.testFlags("", fields(text))
	case strings.Contains(text, " ") && !endpoint.MatchString(text):
		if problem, isCommand := tr.command(text); isCommand {
			return problem
		}
		return tr.yaml(text)
	case anEnv.MatchString(text):
		key := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(text, "SPILLWAY_"), "__", "."))
		return tr.key(key)
	case endpoint.MatchString(text):
		return tr.endpoint(endpoint.FindStringSubmatch(text)[1])
	case aMetric.MatchString(text):
		return tr.metric(text)
	}
	if aKey.MatchString(text) && tr.hasKey(firstOf(text)) && !anEnding.MatchString(text) {
		return tr.key(text)
	}
	if m := aName.FindStringSubmatch(text); m != nil && !anEnding.MatchString(text) {
		return tr.name(m[1], m[2])
	}
	if aPath.MatchString(text) && !tr.literals[text] { // a subprotocol may look like a file
		return tr.path(d.folder, text)
	}
	return ""
}

func firstOf(key string) string {
	first, _, _ := strings.Cut(key, ".")
	return first
}

func fields(text string) []string {
	words := quoted.FindAllString(text, -1)
	for i, w := range words {
		words[i] = strings.Trim(w, `'"`)
	}
	return words
}

// path takes what looks like one: from the root, or from the document's own folder or a
// folder below it. Without an ending it must begin with a folder of ours.
func (tr *tree) path(folder, text string) string {
	text = strings.TrimSuffix(text, "/")
	first, rest, nested := strings.Cut(text, "/")
	known := tr.paths[first] && first != "." || tr.paths[path.Join(folder, first)]
	if !anEnding.MatchString(text) && (!nested || !known || rest == "") || strings.HasPrefix(text, ".") {
		return ""
	}
	if tr.exists(text) || tr.exists(path.Join(folder, text)) {
		return ""
	}
	for p := range tr.paths { // conn.go in gateway/DESIGN.md may be in a room of gateway
		below := folder == "." || strings.HasPrefix(p, folder+"/")
		if ok, _ := path.Match(text, lastParts(p, text)); ok && below {
			return ""
		}
	}
	if folder != "." {
		if parent := path.Dir(folder); parent != "." {
			return tr.path(parent, text)
		}
	}
	return "there is no such file or folder"
}

// lastParts is the end of p with as many parts as like has.
func lastParts(p, like string) string {
	parts := strings.Split(p, "/")
	n := min(len(parts), 1+strings.Count(like, "/"))
	return strings.Join(parts[len(parts)-n:], "/")
}

func (tr *tree) exists(name string) bool {
	if tr.paths[name] {
		return true
	}
	if strings.Contains(name, "*") {
		for p := range tr.paths {
			if ok, _ := path.Match(name, p); ok {
				return true
			}
		}
	}
	return false
}

// key takes one of a configuration file, or a group of keys.
func (tr *tree) key(text string) string {
	if !tr.hasKey(strings.TrimSuffix(text, ".*")) {
		return "no configuration file has the key " + text
	}
	return ""
}

// hasKey says that there is a key, or one that begins so. NAME in a key is any word.
func (tr *tree) hasKey(text string) bool {
	parts := strings.Split(text, ".")
	return slices.ContainsFunc(tr.keys, func(key []string) bool {
		if len(key) < len(parts) {
			return false
		}
		for i, part := range parts {
			if key[i] != part && key[i] != "NAME" {
				return false
			}
		}
		return true
	})
}

// yaml takes a piece of a configuration file, if it begins with a key of ours.
func (tr *tree) yaml(text string) string {
	var all map[string]any
	if yaml.Unmarshal([]byte(text), &all) != nil {
		return ""
	}
	for key := range all {
		if !tr.hasKey(firstOf(key)) {
			return ""
		}
	}
	return tr.keysOf("", all)
}

func (tr *tree) keysOf(prefix string, all map[string]any) string {
	for key, value := range all {
		if problem := tr.key(prefix + key); problem != "" {
			return problem
		}
		if group, ok := value.(map[string]any); ok {
			if problem := tr.keysOf(prefix+key+".", group); problem != "" {
				return problem
			}
		}
	}
	return ""
}

// metric takes a whole name, or its end. In the sources it stands whole, or as a prefix
// and the rest.
func (tr *tree) metric(text string) string {
	m := aMetric.FindStringSubmatch(text)
	name, open := strings.TrimLeft(m[1], ".…"), m[2] != "" || strings.HasSuffix(m[1], "_")
	whole := strings.HasPrefix(name, "spillway_")
	if !tr.hasMetric(name, whole, open) {
		for _, of := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, of); ok && tr.hasMetric(base, whole, open) {
				return ""
			}
		}
		return "there is no such metric"
	}
	if m[3] == "" {
		return ""
	}
	for _, l := range aLabel.FindAllStringSubmatch(m[3], -1) {
		for _, word := range l[1:] {
			if word != "" && !tr.literals[word] {
				return "no metric has the label or value " + word
			}
		}
	}
	return ""
}

func (tr *tree) hasMetric(name string, whole, open bool) bool {
	for text := range tr.literals {
		switch {
		case whole && (text == name || open && strings.HasPrefix(text, name)):
			return true
		case !whole && strings.HasSuffix(text, strings.TrimPrefix(name, "_")) && !strings.Contains(text, " "):
			return true
		case whole && strings.HasPrefix(text, "spillway_") && strings.HasSuffix(text, "_") && (strings.HasPrefix(name, text)):
			rest := strings.TrimPrefix(name, text)
			if tr.literals[rest] {
				return true
			}
			if open && tr.begins(rest) {
				return true
			}
		}
	}
	return false
}

func (tr *tree) begins(with string) bool {
	for text := range tr.literals {
		if strings.HasPrefix(text, with) {
			return true
		}
	}
	return false
}

func (tr *tree) endpoint(of string) string {
	for text := range tr.literals {
		if strings.Contains(text, of) {
			return ""
		}
	}
	return "no source has this path"
}

// name takes package.Name and type.member, where there is such a package or type.
func (tr *tree) name(of, member string) string {
	declared, isPackage := tr.exported[of]
	members, isType := tr.members[of]
	exported := strings.ToUpper(member[:1]) == member[:1]
	switch {
	case declared[member], members[member], tr.fields[member], !isPackage && !isType:
		return ""
	case isPackage && exported:
		return "package " + of + " does not declare " + member
	case isType && !isPackage:
		return "type " + of + " has no field or method " + member
	}
	return ""
}

// flags takes those of our own programs.
func (tr *tree) flags(text string) string {
	for _, w := range fields(text) {
		name, _, _ := strings.Cut(strings.TrimRight(w, ",.;…"), "=")
		if strings.HasPrefix(name, "--") && name != "--" && !tr.options[name] && name != "--help" {
			return "no program has the flag " + name
		}
	}
	return ""
}

// command says whether a text is a command that we know, and what is wrong with it.
func (tr *tree) command(text string) (problem string, is bool) {
	words := fields(text)
	for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
		words = words[1:]
	}
	if len(words) < 2 {
		return "", false
	}
	switch {
	case words[0] == "make":
		for _, w := range words[1:] {
			if !strings.Contains(w, "=") && !tr.targets[w] {
				return "the Makefile has no target " + w, true
			}
		}
		return "", true
	case words[0] == "go" && words[1] == "test":
		return tr.goTest(words[2:]), true
	case words[0] == "go" && (words[1] == "run" || words[1] == "build" || words[1] == "vet"):
		return tr.goRun(words[1:]), true
	case programs[words[0]] != "":
		return tr.program(programs[words[0]], words[1:]), true
	}
	return "", false
}

func (tr *tree) goRun(words []string) string {
	for i, w := range words {
		if !strings.HasPrefix(w, "./") {
			continue
		}
		if !tr.paths[path.Clean(strings.TrimSuffix(w, "/..."))] {
			return "there is no folder " + w
		}
		if folder := programs[w]; words[0] == "run" && folder != "" {
			return tr.program(folder, words[i+1:])
		}
	}
	return ""
}

func (tr *tree) program(folder string, words []string) string {
	if problem := tr.flags(strings.Join(words, " ")); problem != "" || len(words) == 0 {
		return problem
	}
	word := words[0]
	switch commands := tr.commands[folder]; {
	case !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(word), commands[word]:
		return ""
	case folder == "cmd/drill" && tr.literals[word]: // a scenario
		return ""
	}
	return folder + " has no command " + word
}

// goTest takes packages, flags, and the patterns of -run, -bench and -fuzz.
func (tr *tree) goTest(words []string) string {
	var folders []string
	for _, w := range words {
		if !strings.HasPrefix(w, "./") {
			continue
		}
		base, all := strings.CutSuffix(w, "/...")
		base = path.Clean(base)
		if !tr.paths[base] {
			return "there is no package " + w
		}
		for folder := range tr.tests {
			if folder == base || all && (base == "." || strings.HasPrefix(folder, base+"/")) {
				folders = append(folders, folder)
			}
		}
	}
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == "-run" || w == "-bench" || w == "-fuzz" {
			if problem := tr.pattern(folders, words[i+1]); problem != "" {
				return problem
			}
		}
	}
	return tr.testFlags(strings.Join(folders, " "), words)
}

// pattern must match a test of these folders with each of its alternatives.
func (tr *tree) pattern(folders []string, pattern string) string {
	for _, one := range strings.Split(pattern, "|") {
		one, _, _ = strings.Cut(strings.Trim(one, "()"), "/")
		if slices.Contains([]string{"xxx", "^$", "$^", ".", "NONE", ""}, one) {
			continue
		}
		re, err := regexp.Compile(one)
		if err != nil {
			return err.Error()
		}
		if !tr.anyTest(folders, re) {
			return "no test there matches " + one
		}
	}
	return ""
}

func (tr *tree) anyTest(folders []string, re *regexp.Regexp) bool {
	for folder, names := range tr.tests {
		if (len(folders) == 0 || slices.Contains(folders, folder)) && slices.ContainsFunc(names, re.MatchString) {
			return true
		}
	}
	return false
}

// testFlags are go test's, or defined by the tests of these folders; of any, if none is
// named.
func (tr *tree) testFlags(folders string, words []string) string {
	for _, w := range words {
		name, dashed := strings.CutPrefix(strings.TrimRight(w, ",.;…"), "-")
		name, _, _ = strings.Cut(name, "=")
		if !dashed || name == "" || name[0] < 'A' || slices.Contains(goTestFlags, name) {
			continue
		}
		found := false
		for folder, defined := range tr.testFlag {
			found = found || defined[name] && (folders == "" || slices.Contains(strings.Fields(folders), folder))
		}
		if !found {
			return "no test there has the flag -" + name
		}
	}
	if i := slices.IndexFunc(words, func(w string) bool { return w == "-run" || w == "-bench" }); folders == "" && i >= 0 && i+1 < len(words) {
		return tr.pattern(nil, words[i+1])
	}
	return ""
}

// test takes the name of one; with … at its end it may go on.
func (tr *tree) test(name string) string {
	prefix, open := strings.CutSuffix(name, "…")
	for _, names := range tr.tests {
		for _, n := range names {
			if n == prefix || open && strings.HasPrefix(n, prefix) {
				return ""
			}
		}
	}
	return "there is no such test"
}
