package views

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// steadyMembers is a membership that does not change.
type steadyMembers struct{ snapshot *presence.Snapshot }

func (m *steadyMembers) Snapshot() *presence.Snapshot { return m.snapshot }
func (*steadyMembers) Changed() <-chan struct{}       { return nil }
func (*steadyMembers) Incarnation() uint64            { return 0 }
func (*steadyMembers) LeaseLosses() uint64            { return 0 }

// A channel that memory alone numbers is doubted from the first moment after a pause,
// before the pause is counted: another router may have it by now.
func TestAPauseIsDoubtedBeforeItIsCounted(t *testing.T) {
	router := func(id string, state gatewayv1.State) *presence.Member {
		return &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: state}
	}
	v := New(Config{Self: "r1", PauseLimit: time.Minute}, &steadyMembers{presence.NewSnapshot([]*presence.Member{
		router("r1", gatewayv1.State_STATE_SERVING), router("r2", gatewayv1.State_STATE_DRAINING),
	}, 1)})
	v.tick()
	before := v.Look(time.Now())
	held := before.Trust()
	if before.Doubt("brief:a", true, held, 0) {
		t.Fatal("it is doubted without a pause")
	}
	v.beat.Store(-int64(time.Hour)) // the process has stood still since
	after := v.Look(time.Now())
	if !after.Doubt("brief:a", true, held, 0) {
		t.Error("it is not doubted after a pause")
	}
}
