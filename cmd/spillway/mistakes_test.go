package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/proto/schema"
)

// numbers are the keys that hold numbers and times, with a value each that is below what
// any of them may be.
func numbers(all []schema.Setting) map[string]string {
	keys := make(map[string]string)
	for _, s := range all {
		key := strings.Replace(s.Key, ".NAME.", ".chat.", 1)
		switch s.Type {
		case "a whole number", "a number":
			keys[key] = "-1"
		case schema.Type(reflect.TypeFor[time.Duration]()):
			keys[key] = "-1s"
		}
	}
	return keys
}

// Whatever is wrong is told once, and by the key that stands in the file: the file and the
// part that is configured by it both check.
func TestEachMistakeIsToldOnce(t *testing.T) {
	load := map[string]func(config.Source) error{
		"router":  func(s config.Source) error { _, err := routerfile.Load(s); return err },
		"gateway": func(s config.Source) error { _, err := gatewayfile.Load(s); return err },
	}
	files := map[string]struct {
		text string
		of   []schema.Setting
	}{
		"router":  {"id: a\nstore: {sqlite: x.db}\n", routerfile.Settings()},
		"gateway": {"id: a\nauth: {anonymous: true}\n", gatewayfile.Settings()},
	}
	dir := t.TempDir()
	for name, f := range files {
		keys := numbers(f.of)
		if len(keys) < 10 {
			t.Fatalf("%s: only %v", name, keys)
		}
		for key, value := range keys {
			path := filepath.Join(dir, "file.yaml")
			variable := config.Variable(key) + "=" + value
			if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := load[name](config.Source{File: path, Environ: []string{variable}})
			var told *config.Error
			if !errors.As(err, &told) {
				t.Errorf("%s: %s: %s is taken: %v", name, key, value, err)
				continue
			}
			if len(told.Problems) != 1 || told.Problems[0].Where != "environment" {
				t.Errorf("%s: %s: %s is told as %v", name, key, value, fmt.Sprint(err))
			}
		}
	}
}
