package routerfile

import (
	"fmt"
	"os"
	"strings"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/router/api"
)

// Keys reads api.keys_file; none if it is not named. Errors never repeat a secret.
//
//	keys:
//	  - name: billing
//	    secret: at least 16 characters
//	    rights: [publish, read]
//
// Rights: publish, read (history), admin, edge (edges, and routers that forward).
func (a API) Keys() ([]api.Key, error) {
	if a.KeysFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(a.KeysFile)
	if err != nil {
		return nil, fmt.Errorf("api.keys_file: %s: cannot be read", a.KeysFile)
	}
	var file struct {
		Keys []api.Key `key:"keys"`
	}
	found, err := config.Decode(text, &file)
	if err != nil {
		return nil, fmt.Errorf("api.keys_file: %s: not a YAML file with a list called keys", a.KeysFile)
	}
	var wrong []string
	for _, f := range found {
		wrong = append(wrong, f.Key+": "+secretless(f))
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("api.keys_file: %s: %s", a.KeysFile, strings.Join(wrong, ", "))
	}
	if len(file.Keys) == 0 {
		return nil, fmt.Errorf("api.keys_file: %s: has no keys", a.KeysFile)
	}
	return file.Keys, nil
}

func secretless(p config.Problem) string {
	if strings.HasSuffix(p.Key, ".secret") {
		return "must be text"
	}
	return p.Text
}
