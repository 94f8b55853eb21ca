package presence

import (
	"fmt"
	"slices"
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Whoever asked hears every figure, and of every incarnation that is gone whether it
// left in order.
func TestFiguresAndDeparturesAreTold(t *testing.T) {
	var told []string
	c := New(Config{
		Self:  &Member{Id: "r1", Role: gatewayv1.Role_ROLE_ROUTER},
		Heard: func(f *Figure) { told = append(told, "heard "+f.Id) },
		Gone:  func(m *Member, left bool) { told = append(told, fmt.Sprint("gone ", m.Id, m.Incarnation, " ", left)) },
	}, nil, nil)
	edge := func(id string, incarnation uint64, s gatewayv1.State) *Member {
		return &Member{Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: incarnation, State: s}
	}
	serving := gatewayv1.State_STATE_SERVING
	c.take(Change{Listed: ListStart, List: []*Member{edge("a", 1, serving), edge("b", 1, serving)}, Revision: 1})
	c.heard(&Figure{Id: "a", Role: gatewayv1.Role_ROLE_EDGE, Incarnation: 1})
	c.heard(&Figure{Id: "unknown", Role: gatewayv1.Role_ROLE_EDGE})
	c.take(Change{Put: edge("a", 2, serving), Revision: 2})
	c.take(Change{Put: edge("b", 1, gatewayv1.State_STATE_LEFT), Revision: 3})
	if want := []string{"heard a", "heard unknown", "gone a1 false", "gone b1 true"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
