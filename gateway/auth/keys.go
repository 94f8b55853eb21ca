package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

const (
	minSecretBytes = 16
	minRSABits     = 2048
	maxRSABits     = 8192
	// maxTries bounds what a token without kid costs: 8 x 53 us.
	maxTries = 8
)

// key is one key with the one algorithm that it is used with.
type key struct {
	method string
	id     string // kid; "": of any token
	key    any
}

// parsers check signatures, one for each algorithm; claims are checked by Verify.
var parsers = func() map[string]*jwt.Parser {
	m := map[string]*jwt.Parser{}
	for _, alg := range []string{"HS256", "RS256", "ES256", "EdDSA"} {
		m[alg] = jwt.NewParser(jwt.WithValidMethods([]string{alg}), jwt.WithoutClaimsValidation())
	}
	return m
}()

// parseHeader reads which key a token wants; "" for what cannot be read. The parser
// reads the header again.
func parseHeader(token string) (alg, kid string) {
	head, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", ""
	}
	var h struct {
		Alg string `json:"alg"`
		Kid string `json:"kid"`
	}
	if json.Unmarshal(text, &h) != nil {
		return "", ""
	}
	return h.Alg, h.Kid
}

// addKeys takes the keys of the configuration.
func (v *Verifier) addKeys(cfg *Config) error {
	if cfg.HS256 != nil {
		if len(cfg.HS256) < minSecretBytes {
			return fmt.Errorf("auth: the HS256 secret must have at least %d bytes", minSecretBytes)
		}
		v.keys = append(v.keys, key{method: "HS256", key: slices.Clone(cfg.HS256)})
	}
	for _, public := range cfg.PublicKeys {
		k, err := publicKey("", public)
		if err != nil {
			return fmt.Errorf("auth: %w", err)
		}
		v.keys = append(v.keys, k)
	}
	for _, id := range slices.Sorted(maps.Keys(cfg.NamedKeys)) {
		k, err := publicKey(id, cfg.NamedKeys[id])
		if err != nil {
			return fmt.Errorf("auth: key %q: %w", id, err)
		}
		v.keys = append(v.keys, k)
	}
	return nil
}

// publicKey finds the algorithm of a key.
func publicKey(id string, public crypto.PublicKey) (key, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return key{}, fmt.Errorf("an RSA key must have %d to %d bits, not %d", minRSABits, maxRSABits, bits)
		}
		return key{"RS256", id, k}, nil
	case ed25519.PublicKey:
		return key{"EdDSA", id, k}, nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return key{}, errors.New("an ECDSA key must be on P-256")
		}
		return key{"ES256", id, k}, nil
	}
	return key{}, fmt.Errorf("a key of type %T is none of RSA, ECDSA, Ed25519", public)
}

// candidates are the keys for a token that says alg and, unless it is "", kid.
func (v *Verifier) candidates(alg, kid string) iter.Seq[key] {
	return func(yield func(key) bool) {
		sets := [2][]key{v.keys}
		if v.jwks != nil {
			sets[1] = v.jwks.known()
		}
		for _, set := range sets {
			for _, k := range set {
				if k.method == alg && (kid == "" || k.id == "" || k.id == kid) && !yield(k) {
					return
				}
			}
		}
	}
}

// ParsePublicKeys reads the public keys of a PEM file.
func ParsePublicKeys(text []byte) ([]crypto.PublicKey, error) {
	var keys []crypto.PublicKey
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("public key %d: %w", len(keys)+1, err)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("holds no PEM public key")
	}
	return keys, nil
}
