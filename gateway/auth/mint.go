package auth

import (
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Mint makes an HS256 token, for `spillway token` and tests. rights is the claim
// channels: pattern to rights, or nil.
func Mint(secret []byte, sub string, rights map[string][]string, join []string, ttl time.Duration, now time.Time) (string, error) {
	claims := jwt.MapClaims{"sub": sub, "iat": now.Unix(), "exp": now.Add(ttl).Unix()}
	if len(rights) > 0 {
		claims["channels"] = rights
	}
	if len(join) > 0 {
		claims["join"] = join
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}
