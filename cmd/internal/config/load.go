package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/spillway-io/spillway/proto/schema"
)

const (
	envPrefix = "SPILLWAY_"
	// between the parts of a nested key: a namespace may have a dot in its name
	delim = "__"
)

// Source is where a configuration comes from.
type Source struct {
	File    string            // "": none
	Environ []string          // as of os.Environ
	Flags   map[string]string // key to value: {"listen": "127.0.0.1:0"}; "" is as if absent
}

// foreign are variables with our prefix which are no keys: those of the command
// line, and the links that Kubernetes makes for services named spillway….
var foreign = regexp.MustCompile(`^SPILLWAY_(SERVER|EDGE|API_KEY_FILE|CA_FILE|([A-Z0-9_]+_)?SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|([A-Z0-9_]+_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// layers are the sources read, and which of them said what.
type layers struct {
	src    Source
	k      *koanf.Koanf
	origin map[string]Problem // flattened key: Where and Key to name it by
}

// where a key stands: its source if one names it, else the file.
func (l *layers) where(key string) Problem {
	for k := key; ; {
		if p, ok := l.origin[k]; ok {
			return p
		}
		i := strings.LastIndex(k, ".")
		if i < 0 {
			break
		}
		k = k[:i]
	}
	if l.src.File == "" {
		return Problem{Where: "environment", Key: key}
	}
	return Problem{Where: l.src.File, Key: key}
}

func read(src Source) (*layers, error) {
	l := &layers{src: src, k: koanf.New(delim), origin: map[string]Problem{}}
	if src.File != "" {
		if err := l.readFile(); err != nil {
			return nil, err
		}
	}
	provider := env.Provider(delim, env.Opt{
		Prefix: envPrefix, EnvironFunc: func() []string { return src.Environ }, TransformFunc: l.variable,
	})
	if err := l.k.Load(provider, nil); err != nil {
		return nil, &Error{[]Problem{{Where: "environment", Text: err.Error()}}}
	}
	for _, key := range slices.Sorted(maps.Keys(src.Flags)) {
		if src.Flags[key] == "" {
			continue
		}
		if err := l.k.Set(strings.ReplaceAll(key, ".", delim), src.Flags[key]); err != nil {
			return nil, err
		}
		l.origin[key] = Problem{Where: "flag", Key: "--" + strings.ReplaceAll(key, "_", "-")}
	}
	return l, nil
}

func (l *layers) readFile() error {
	err := l.k.Load(file.Provider(l.src.File), yaml.Parser())
	if err == nil {
		return nil
	}
	text := err.Error()
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		text = pathErr.Err.Error()
	}
	return &Error{[]Problem{{Where: l.src.File, Text: strings.Join(strings.Fields(text), " ")}}}
}

// variable turns SPILLWAY_LIMITS__MAX_CONNS into a key.
func (l *layers) variable(name, value string) (string, any) {
	if foreign.MatchString(name) {
		return "", nil
	}
	key := strings.ToLower(strings.TrimPrefix(name, envPrefix))
	l.origin[strings.ReplaceAll(key, delim, ".")] = Problem{Where: "environment", Key: name}
	return key, value
}

// Load fills the struct that out points to, which holds the defaults, and checks it by the
// rules that it declares. Before that complete adds what stands in other files; what it
// finds is told too ("key: value: rule", joined). nil: there is nothing to add. The error,
// an *Error, has all problems.
func Load(src Source, out any, complete func() error) error {
	l, err := read(src)
	if err != nil {
		return err
	}
	report := &Error{}
	for _, p := range decode(l.k.Raw(), out) {
		named := l.where(p.Key)
		named.Text = p.Text
		report.Problems = append(report.Problems, named)
	}
	var more error
	if complete != nil {
		more = complete()
	}
	for _, p := range append(problems(schema.Validate(out)), problems(more)...) {
		named := l.where(p.Key)
		named.Text = p.Text
		report.add(named)
	}
	slices.SortStableFunc(report.Problems, func(a, b Problem) int {
		return strings.Compare(a.Where+"\x00"+a.Key, b.Where+"\x00"+b.Key)
	})
	return report.orNil()
}

// Variable is the environment variable of a key.
func Variable(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", delim))
}

// Secret reads a file that holds one secret, white space around it cut off; "" for
// "". name is the key that names the file.
func Secret(name, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%s: %s is empty", name, path)
	}
	return secret, nil
}
