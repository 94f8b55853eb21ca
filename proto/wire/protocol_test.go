package wire

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table in PROTOCOL.md is the table here: same rows, same order, no others.
func TestProtocolTextHasTheTableOfCloseCodes(t *testing.T) {
	var want []string
	for _, r := range CloseRules {
		want = append(want, fmt.Sprintf("| %d | %s | %s |", r.Code, r.Name, r.Then))
	}
	row := regexp.MustCompile(`^\| [1-4]\d{3} \| \w+ \| .* \|$`)
	var got []string
	for _, line := range protocolLines(t) {
		if row.MatchString(line) {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("PROTOCOL.md has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestProtocolTextNamesEveryErrorCode(t *testing.T) {
	text := strings.Join(protocolLines(t), "\n")
	for _, word := range errorWords {
		if !strings.Contains(text, "\n| "+word+" | ") {
			t.Errorf("PROTOCOL.md lacks the error code %s", word)
		}
	}
}

// Whoever copies an example gets what it says.
func TestExamplesInProtocolTextAreRead(t *testing.T) {
	n := 0
	for _, line := range protocolLines(t) {
		side, frame := "", line
		if strings.HasPrefix(line, "> ") || strings.HasPrefix(line, "< ") {
			side, frame = line[:1], line[2:]
		}
		if !strings.HasPrefix(frame, `{"type":`) || !strings.HasSuffix(frame, "}") {
			continue
		}
		n++
		_, problem := DecodeClient([]byte(frame))
		server, err := DecodeServer([]byte(frame))
		asServer := err == nil && server.Frame != nil
		if side == ">" && problem != nil || side == "<" && !asServer || problem != nil && !asServer {
			t.Errorf("%s: as a command: %v; as an answer: %v", frame, problem, err)
		}
	}
	if n < 15 {
		t.Errorf("only %d examples were found", n)
	}
}

func protocolLines(t *testing.T) []string {
	t.Helper()
	file, err := os.Open("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var lines []string
	for s := bufio.NewScanner(file); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}
