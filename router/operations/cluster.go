package operations

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// cluster answers what this router sees now of edges and of live operations. It is
// immutable; any goroutine may ask.
type cluster struct {
	members Membership
	control *control.Control // nil: no operations
}

// owner is the router to which rendezvous gives a name; "": none.
func (c cluster) owner(name string) string {
	if m := c.members.Snapshot().Owner(name); m != nil {
		return m.Id
	}
	return ""
}

// edge finds one, or says why there is none.
func (c cluster) edge(id string) (*presence.Member, error) {
	snapshot := c.members.Snapshot()
	if m := snapshot.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id}); m != nil {
		return m, nil
	}
	if snapshot.Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id}) != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node: %q is a router: end its process, nobody is disconnected", id)
	}
	return nil, status.Errorf(codes.NotFound, "node: %q is not a member of the cluster", id)
}

// member is an edge that is there, or nil.
func (c cluster) member(edge string) *presence.Member {
	return c.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: edge})
}

// serves says that an edge is there and not on its way out.
func (c cluster) serves(edge string) bool {
	m := c.member(edge)
	return m != nil && c.drain(m) == nil
}

// edgesOf are the members of a region that are edges, in any state.
func (c cluster) edgesOf(region string) []*presence.Member {
	var edges []*presence.Member
	for _, m := range c.members.Snapshot().Members() {
		if m.Role == gatewayv1.Role_ROLE_EDGE && m.Region == region {
			edges = append(edges, m)
		}
	}
	return edges
}

// figureOf is the newest load figure of this life of a member, or nil.
func figureOf(figures map[presence.Key]*presence.Figure, m *presence.Member) *presence.Figure {
	if f := figures[presence.KeyOf(m)]; f != nil && f.Incarnation == m.Incarnation {
		return f
	}
	return nil
}

// drain is the live one of an edge, or nil.
func (c cluster) drain(m *presence.Member) *gatewayv1.Operation {
	return c.live(gatewayv1.OperationKind_OPERATION_KIND_DRAIN, func(op *gatewayv1.Operation) bool {
		return op.Node == m.Id && (op.Incarnation == 0 || op.Incarnation == m.Incarnation)
	})
}

// evacuation is the live one of a region, or nil.
func (c cluster) evacuation(region string) *gatewayv1.Operation {
	return c.live(gatewayv1.OperationKind_OPERATION_KIND_EVACUATE, func(op *gatewayv1.Operation) bool { return op.Region == region })
}

func (c cluster) evacuated(region string) bool { return c.evacuation(region) != nil }

func (c cluster) live(kind gatewayv1.OperationKind, is func(*gatewayv1.Operation) bool) *gatewayv1.Operation {
	for _, op := range c.operations() {
		if op.Kind == kind && !control.Ended(op) && is(op) {
			return op
		}
	}
	return nil
}

func (c cluster) operations() []*gatewayv1.Operation {
	if c.control == nil {
		return nil
	}
	return c.control.Operations()
}

// room is what edges hold and what they can take, by their newest figures.
type room struct {
	edges     int
	conns     uint64
	critical  uint64
	headroom  uint64
	smallest  float64 // rate of the slowest
	perSecond float64
	blind     bool // some have no address of their own: a balancer spreads over all alike
}

func (r *room) add(m *presence.Member, f *presence.Figure) {
	if r.edges == 0 || f.MovedPerSecond < r.smallest {
		r.smallest = f.MovedPerSecond
	}
	r.edges++
	r.conns += f.Conns
	r.critical += f.Critical
	r.headroom += f.Headroom
	r.perSecond += f.MovedPerSecond
	r.blind = r.blind || m.Address == ""
}

// rate is at what pace they take clients that move.
func (r *room) rate() float64 {
	if r.blind {
		return r.smallest * float64(r.edges)
	}
	return r.perSecond
}

// receivers sums over the edges that may be given clients.
func (c cluster) receivers(want func(*presence.Member) bool) room {
	var sum room
	figures := c.members.Figures()
	for _, m := range c.members.Snapshot().Edges() {
		f := figureOf(figures, m)
		if f != nil && f.State == gatewayv1.State_STATE_SERVING && !c.members.Silent(presence.KeyOf(m)) && want(m) {
			sum.add(m, f)
		}
	}
	return sum
}

// region sums over all edges of one; unheard are those of which no figure came yet.
func (c cluster) region(name string) (sum room, unheard int) {
	figures := c.members.Figures()
	for _, m := range c.edgesOf(name) {
		f := figureOf(figures, m)
		if f == nil {
			f = &presence.Figure{}
			unheard++
		}
		sum.add(m, f)
	}
	return sum, unheard
}

// takes is the time that so many clients need at a rate; 0: for ever.
func takes(conns uint64, perSecond float64) time.Duration {
	if perSecond <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(float64(conns)/perSecond*1000)) * time.Millisecond
}
