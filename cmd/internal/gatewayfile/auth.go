package gatewayfile

import (
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/proto/schema"
)

// Auth says whose tokens are good. At least one way must be named, or anonymous.
type Auth struct {
	Anonymous       bool     `key:"anonymous" default:"false" doc:"Whoever has no token gets every right. It is for development."`
	HS256SecretFile string   `key:"hs256_secret_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/token-secret" doc:"This file holds a shared secret of at least 16 bytes, with which tokens are signed (HS256)."`
	PublicKeyFiles  []string `key:"public_key_files" rule:"a file that can be read" zero:"none" example:"[/etc/spillway/issuer.pem]" doc:"These PEM files hold public keys of token issuers. The kind of a key says whether its tokens are RS256, ES256 or EdDSA."`
	auth.Config
}

// Check implements schema.Checker.
func (a *Auth) Check(p *schema.Problems) {
	if !a.Anonymous && a.HS256SecretFile == "" && len(a.PublicKeyFiles) == 0 && a.JWKSURL == "" {
		p.AddValue(a, "", "name hs256_secret_file, public_key_files or jwks_url; or anonymous: true, for development")
	}
}

// Verifier reads the files and is nil where only anonymous clients come. Errors begin with
// the key.
func (a *Auth) Verifier(log *slog.Logger, registry prometheus.Registerer) (*auth.Verifier, error) {
	ac := a.Config
	ac.Log, ac.Registry = log, registry
	secret, err := config.Secret("auth.hs256_secret_file", a.HS256SecretFile)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		ac.HS256 = []byte(secret)
	}
	for _, path := range a.PublicKeyFiles {
		keys, err := publicKeys(path)
		if err != nil {
			return nil, fmt.Errorf("auth.public_key_files: %s: %w", path, err)
		}
		ac.PublicKeys = append(ac.PublicKeys, keys...)
	}
	if ac.HS256 == nil && ac.PublicKeys == nil && ac.JWKSURL == "" {
		return nil, nil // Check has asked for anonymous: true
	}
	v, err := auth.New(ac)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return v, nil
}

func publicKeys(path string) ([]crypto.PublicKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.New("cannot be read")
	}
	return auth.ParsePublicKeys(text)
}
