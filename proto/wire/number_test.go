package wire

import (
	"math/big"
	"testing"
)

func TestWholeNumbersInAnySpelling(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "7": 7, "1e3": 1000, "1E+3": 1000, "1.0": 1, "1.50e1": 15, "10e-1": 1, "0.0": 0, "0e99999999999": 0,
		"9007199254740991": MaxOffset, "9007199254740991.0": MaxOffset, "9.007199254740991e15": MaxOffset,
	} {
		if got, ok := parseUint([]byte(in)); !ok || got != want {
			t.Errorf("%s: %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{
		"-1", "-0", "1.5", "1e-1", "9007199254740992", "9007199254740991.5", "1e16", "1e99999999999999999999", "18446744073709551617",
		`"1"`, "true", "{}", "[1]", "1e-99999999999999999999",
	} {
		if got, ok := parseUint([]byte(in)); ok {
			t.Errorf("%s passed as %d", in, got)
		}
	}
}

// What is accepted has exactly the value that arbitrary precision gives it.
func FuzzParseUint(f *testing.F) {
	for _, s := range []string{"1", "1.0", "12e2", "9007199254740993", "1.230e2", "100e-2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" || len(s) > 40 || s[0] < '0' || s[0] > '9' {
			return
		}
		if end, err := scanNumber([]byte(s), 0); err != nil || end < len(s) {
			return
		}
		n, ok := parseUint([]byte(s))
		if !ok {
			return
		}
		want, good := new(big.Rat).SetString(s)
		if good && want.Cmp(new(big.Rat).SetInt64(int64(n))) != 0 {
			t.Fatalf("%s was read as %d", s, n)
		}
	})
}
