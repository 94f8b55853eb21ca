package natsserver

import (
	"errors"
	"testing"
)

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	first, err := Start(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Start(t.Context(), first.Port())
	var taken *PortTakenError
	if !errors.As(err, &taken) || "nats://"+taken.Addr != first.URL() {
		t.Errorf("started beside another: %v", err)
	}
}
