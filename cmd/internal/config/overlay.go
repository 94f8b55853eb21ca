package config

import (
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"

	"github.com/spillway-io/spillway/proto/schema"
)

// settingsSource is how problems of the cluster's settings are named.
const settingsSource = "settings"

// Overlay lays the cluster's settings (YAML with hot keys) over the struct that out points
// to, then asks validate. All problems are reported at once, in an *Error; out is of no use
// then.
func Overlay(out any, text string, validate func() error) error {
	raw, err := yaml.Parser().Unmarshal([]byte(text))
	if err != nil {
		return &Error{[]Problem{{Where: settingsSource, Text: strings.Join(strings.Fields(err.Error()), " ")}}}
	}
	hot := make(map[string]string)
	schema.Walk(out, func(f schema.Field) { hot[f.Key] = f.Hot })
	report := &Error{}
	for _, key := range leaves("", raw) {
		if when, known := hot[key]; known && when != "true" {
			report.add(Problem{Where: settingsSource, Key: key, Text: "cannot change while an edge runs"})
		}
	}
	for _, p := range append(decode(raw, out), problems(validate())...) {
		p.Where = settingsSource
		report.add(p)
	}
	return report.orNil()
}

// leaves are the keys that hold values.
func leaves(prefix string, raw map[string]any) []string {
	var keys []string
	for name, value := range raw {
		if group, ok := value.(map[string]any); ok {
			keys = append(keys, leaves(prefix+name+".", group)...)
		} else {
			keys = append(keys, prefix+name)
		}
	}
	slices.Sort(keys)
	return keys
}
