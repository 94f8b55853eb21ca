package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCompactLeavesValuesUntouched(t *testing.T) {
	in := "{ \"big\" : 9007199254740993,\r\n\t\"f\": 1.10e+2, \"s\":\"a\\u0041 \\/ \u2028\" , \"e\":[ ] }"
	want := "{\"big\":9007199254740993,\"f\":1.10e+2,\"s\":\"a\\u0041 \\/ \u2028\",\"e\":[]}"
	got, err := CompactJSON([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCompactRefusesWhatIsNotJSON(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "byte 0: the text ends",
		"{":                    "byte 1: the text ends",
		"1 2":                  "byte 2: something follows",
		"nul":                  "byte 0: a value",
		"[1,]":                 "byte 3: a value",
		"{\"a\":1,}":           "byte 7: a field's name",
		"{\"a\" 1}":            "byte 5: a colon",
		"[1}":                  "byte 2: a comma",
		"01":                   "a number",
		"-":                    "a number",
		"1.":                   "a digit",
		"1e+":                  "a digit",
		"+1":                   "byte 0: a value",
		"NaN":                  "byte 0: a value",
		"\"a\nb\"":             "byte 2: a control",
		`"\x"`:                 "byte 2: an unknown escape",
		`"\u12g4"`:             "byte 2: four hex",
		`"abc`:                 "byte 4: the text ends in a string",
		`"abc\`:                "the text ends in a string",
		"\"\xff\"":             "not UTF-8",
		"\ufeff1":              "byte 0: a value",
		strings.Repeat("[", 9): "byte 9: the text ends",
	} {
		if _, err := CompactJSON([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// Depth is a number of the protocol, not what a stack happens to bear.
func TestDeepNestingIsRefusedNotCrashed(t *testing.T) {
	for _, open := range []string{"[", `{"a":`, ` [ {"b": [ `} {
		if _, err := CompactJSON([]byte(strings.Repeat(open, 1_000_000))); err == nil || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("a million times %q: %v", open, err)
		}
	}
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if _, err := CompactJSON(nested(MaxJSONDepth)); err != nil {
		t.Error(err)
	}
	if _, err := CompactJSON(nested(MaxJSONDepth + 1)); err == nil {
		t.Error("one deeper than allowed passed")
	}
	line := `{"type":"ping","id":1,"x":` + strings.Repeat("[", 60_000)
	if _, problem := DecodeClient([]byte(line)); problem == nil {
		t.Error("a deep frame passed")
	}
}

func TestCompactTextIsReturnedAsItIs(t *testing.T) {
	in := []byte(`{"a":[1,"x y"]}`)
	if out, err := CompactJSON(in); err != nil || &out[0] != &in[0] {
		t.Errorf("%s %v", out, err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = CompactJSON(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The naive twin is encoding/json, which has no limit of 512 and takes bytes that
// are not UTF-8.
func FuzzCompactJSON(f *testing.F) {
	for _, s := range []string{`{ "a" : [1, 2.50, "x\n"] }`, ` [ ] `, `-0.0E-0`, `"\ud800"`, `{"a":{"b":[{},[],null,true,false]}}`, `tru`, "[\"\u2028\"]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		out, err := CompactJSON(data)
		if !bytes.Equal(before, data) {
			t.Fatalf("%q was changed", before)
		}
		var twin bytes.Buffer
		twinErr := json.Compact(&twin, data)
		if err != nil {
			if twinErr == nil && utf8.Valid(data) && bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= MaxJSONDepth {
				t.Fatalf("%q: %v, but encoding/json takes it", data, err)
			}
			return
		}
		if twinErr != nil || !bytes.Equal(out, twin.Bytes()) {
			t.Fatalf("%q gave %q, encoding/json %q, %v", data, out, twin.Bytes(), twinErr)
		}
		if bytes.ContainsAny(out, "\n\r") {
			t.Fatalf("%q gave %q", data, out)
		}
	})
}
