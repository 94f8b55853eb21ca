package process

import "testing"

// Clusters of one process start side by side, and listen long after they have chosen.
func TestNoPortIsGivenTwice(t *testing.T) {
	seen := make(map[int]bool)
	for range 2000 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}
