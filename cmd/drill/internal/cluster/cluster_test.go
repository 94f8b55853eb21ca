package cluster

import (
	"os"
	"strings"
	"testing"
	"time"
)

// A cluster that cannot start says why, and leaves nothing.
func TestAStartThatFailsCleansUp(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := Start(t.Context(), Config{Binary: []string{"/bin/false"}, Edges: 1, Namespaces: "{}", StartTime: 10 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "ended at its start") {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Start(t.Context(), Config{Routers: 2}); err == nil {
		t.Error("two routers over SQLite")
	}
}
