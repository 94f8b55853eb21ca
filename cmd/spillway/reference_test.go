package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/proto/schema"
)

// A file with every key at the value that the reference gives as its default is as good as
// none, and examples are of the right type: what is documented is what holds.
func TestEveryKeyIsDocumentedWithItsDefault(t *testing.T) {
	for name, file := range map[string]struct {
		settings []schema.Setting
		filled   func(src config.Source) (with, without any, err error)
	}{
		"gateway": {gatewayfile.Settings(), func(src config.Source) (any, any, error) {
			f, d := gatewayfile.Default(), gatewayfile.Default()
			return f, d, config.Load(src, &f, nil)
		}},
		"router": {routerfile.Settings(), func(src config.Source) (any, any, error) {
			f, d := routerfile.Default(), routerfile.Default()
			return f, d, config.Load(src, &f, nil)
		}},
	} {
		seen := make(map[string]bool)
		for _, s := range file.settings {
			if seen[s.Key] {
				t.Errorf("%s: %s is declared twice", name, s.Key)
			}
			seen[s.Key] = true
			if !strings.HasSuffix(s.Doc, ".") || s.Type == "" || s.Type == "a whole number" && s.Unit == "" {
				t.Errorf("%s: %s lacks a doc sentence or a unit: %+v", name, s.Key, s)
			}
			if s.Default == "" && s.Zero == "" && s.Example == "" {
				t.Errorf("%s: %s has neither a default, nor a meaning of nothing, nor an example", name, s.Key)
			}
			if s.Example != "" {
				set(t, file.filled, s.Key, s.Example)
			}
			if s.Default != "" && s.Example == "" && s.Key != "id" {
				with, without := set(t, file.filled, s.Key, s.Default)
				if !strings.Contains(s.Key, ".NAME.") && fmt.Sprint(with) != fmt.Sprint(without) {
					t.Errorf("%s: %s is not %s if nothing is said", name, s.Key, s.Default)
				}
			}
		}
		if len(seen) < 20 {
			t.Errorf("%s: only %d keys", name, len(seen))
		}
	}
}

// set loads a file with one key, and that key must be right. Files in examples are not there.
func set(t *testing.T, load func(config.Source) (any, any, error), key, value string) (with, without any) {
	t.Helper()
	key = strings.Replace(key, ".NAME.", ".chat.", 1)
	text, indent := "", ""
	for part := range strings.SplitSeq(key, ".") {
		text, indent = text+"\n"+indent+part+":", indent+"  "
	}
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(text+" "+value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	with, without, err := load(config.Source{File: path})
	if told := (*config.Error)(nil); errors.As(err, &told) {
		for _, p := range told.Problems {
			if p.Key == key && !strings.HasSuffix(p.Text, "cannot be read") {
				t.Errorf("%s: %s: %s", key, value, p.Text)
			}
		}
	}
	return with, without
}
