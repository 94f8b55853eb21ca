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
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
)

// numbers are the keys of a file that hold numbers and times, with a value each that is
// below what any of them may be.
func numbers(t reflect.Type, prefix string) map[string]string {
	all := make(map[string]string)
	for i := range t.NumField() {
		f := t.Field(i)
		key := prefix + strings.Split(f.Tag.Get("yaml"), ",")[0]
		switch {
		case f.Anonymous:
			key = prefix
			fallthrough
		case f.Type.Kind() == reflect.Struct:
			for k, v := range numbers(f.Type, strings.TrimSuffix(key, ".")+dotUnless(f.Anonymous)) {
				all[k] = v
			}
		case f.Type.Kind() == reflect.Map && f.Type.Elem().Kind() == reflect.Struct:
			for k, v := range numbers(f.Type.Elem(), key+".chat.") {
				all[k] = v
			}
		case f.Type == reflect.TypeFor[time.Duration]():
			all[key] = "-1s"
		case f.Type.Kind() == reflect.Int || f.Type.Kind() == reflect.Int64 || f.Type.Kind() == reflect.Float64:
			all[key] = "-1"
		}
	}
	return all
}

func dotUnless(anonymous bool) string {
	if anonymous {
		return ""
	}
	return "."
}

// Whatever is wrong is told once, and by the key that stands in the file: the file and the
// part that is configured by it both check.
func TestEachMistakeIsToldOnce(t *testing.T) {
	load := map[string]func(config.Source) error{
		"router":  func(s config.Source) error { _, err := routernode.Load(s); return err },
		"gateway": func(s config.Source) error { _, err := edgenode.Load(s); return err },
	}
	files := map[string]struct {
		text string
		of   reflect.Type
	}{
		"router":  {"id: a\nstore: {sqlite: x.db}\n", reflect.TypeFor[config.RouterFile]()},
		"gateway": {"id: a\nauth: {anonymous: true}\n", reflect.TypeFor[config.GatewayFile]()},
	}
	dir := t.TempDir()
	for name, f := range files {
		keys := numbers(f.of, "")
		if len(keys) < 10 {
			t.Fatalf("%s: only %v", name, keys)
		}
		for key, value := range keys {
			path := filepath.Join(dir, "file.yaml")
			variable := "SPILLWAY_" + strings.ToUpper(strings.ReplaceAll(key, ".", "__")) + "=" + value
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
