package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
)

// Key is one entry of api.keys_file:
//
//	keys:
//	  - name: billing
//	    secret: at least 16 characters
//	    rights: [publish, read]
//
// Rights: publish, read (history), admin, edge (edges, and routers that forward).
type Key struct {
	Name   string   `yaml:"name"`
	Secret string   `yaml:"secret"`
	Rights []string `yaml:"rights"`
}

// Keys reads api.keys_file; none if it is not named. Errors never repeat a secret.
func (a API) Keys() ([]Key, error) {
	if a.KeysFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(a.KeysFile)
	if err != nil {
		return nil, fmt.Errorf("api.keys_file: %s: cannot be read", a.KeysFile)
	}
	raw, err := yaml.Parser().Unmarshal(text)
	if err != nil {
		return nil, fmt.Errorf("api.keys_file: %s: not a YAML file with a list called keys", a.KeysFile)
	}
	var file struct {
		Keys []Key `yaml:"keys"`
	}
	var wrong []string
	for _, f := range decode(raw, &file) {
		wrong = append(wrong, f.key+": "+secretless(f))
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("api.keys_file: %s: %s", a.KeysFile, strings.Join(wrong, ", "))
	}
	if len(file.Keys) == 0 {
		return nil, fmt.Errorf("api.keys_file: %s: has no keys", a.KeysFile)
	}
	return file.Keys, nil
}

func secretless(f finding) string {
	if strings.HasSuffix(f.key, ".secret") {
		return "must be text"
	}
	return f.text
}

// Secret reads a file that holds one secret, white space around it cut off; "" for
// "". name is the key that names the file.
func Secret(name, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	secret, err := secretFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return secret, nil
}
