package etcdserver

import (
	"errors"
	"testing"
)

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	first, err := Start(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Start(t.Context(), Config{Dir: t.TempDir(), Port: first.Port()})
	var taken *PortTakenError
	if !errors.As(err, &taken) || "http://"+taken.Addr != first.Endpoint() {
		t.Errorf("started beside another: %v", err)
	}
}
