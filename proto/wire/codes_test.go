package wire

import (
	"testing"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

func TestRangesOfCloseCodesDecide(t *testing.T) {
	for code, want := range map[CloseCode]Reaction{
		1000: BackOff, 1001: BackOff, 1002: BackOffFromCap, 1006: BackOff, 1007: BackOffFromCap, 1009: BackOffFromCap, 1011: BackOff,
		3000: BackOff, 4000: BackOff, 4001: BackOff, 4006: BackOff, 4010: BackOff, 4099: BackOff, 4100: NewCredentials,
		4199: NewCredentials, 4200: Stop, 4299: Stop, 4300: BackOff, 4999: BackOff, 0: BackOff,
	} {
		if got := code.Reaction(); got != want {
			t.Errorf("%v: %v, want %v", code, got, want)
		}
	}
}

func TestCloseCodesHaveDistinctNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range CloseRules {
		if seen[r.Name] || r.Name != r.Code.Name() || r.Then == "" || r.Code < 4000 {
			t.Errorf("%+v", r)
		}
		seen[r.Name] = true
	}
}

func TestEveryErrorCodeHasAWord(t *testing.T) {
	for number := range clientv1.ErrorCode_name {
		code := clientv1.ErrorCode(number)
		if code == clientv1.ErrorCode_ERROR_CODE_UNSPECIFIED {
			continue
		}
		word, ok := errorWords[code]
		if !ok || ParseErrorWord(word) != code || ErrorWord(code) != word {
			t.Errorf("%v: %q", code, word)
		}
	}
	if ParseErrorWord("of a later version") != clientv1.ErrorCode_ERROR_CODE_INTERNAL {
		t.Error("an unknown word must be an internal error")
	}
}
