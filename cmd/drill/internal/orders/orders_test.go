package orders

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestCommandsComeWholeAndInOrder(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	r := From[struct{ N int }](in)
	var got []int
	read := func() error {
		return r.Obey(make([]byte, 64), func(c *struct{ N int }) error { got = append(got, c.N); return nil })
	}
	for _, piece := range []string{`{"N":1}` + "\n" + `{"N":`, `2}` + "\n"} {
		if _, err := out.WriteString(piece); err != nil {
			t.Fatal(err)
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("got %v", got)
	}
	_, _ = out.WriteString("no JSON\n")
	if err := read(); err == nil || err == io.EOF {
		t.Errorf("bad line: %v", err)
	}
	_ = out.Close()
	r = From[struct{ N int }](in)
	if err := read(); err != io.EOF {
		t.Errorf("closed file: %v", err)
	}
}

func TestAnEndlessCommandIsRefused(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	r := From[struct{}](in)
	piece := strings.Repeat("x", 32<<10) // fits the pipe
	for range maxBytes/len(piece) + 1 {
		if _, err = out.WriteString(piece); err != nil {
			t.Fatal(err)
		}
		if err = r.Obey(make([]byte, len(piece)), func(*struct{}) error { return nil }); err != nil {
			return
		}
	}
	t.Error("it was kept")
}
