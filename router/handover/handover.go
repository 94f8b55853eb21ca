// Package handover moves channels between routers as their owners change, so that a
// router that joins or leaves in order interrupts none and loses nothing: it gives what
// others own by now (giver.go), asks for what this router owns and does not have
// (seeker.go), takes what it is given (receiver.go), and passes on publications that came
// to the wrong router (passer.go). Which channels those are, and what they hold, is the
// business of router/channel; here they are carried.
//
// router/table calls Offers, Seek and Pass, which do not block; the root calls Run and
// Leave, and registers Service. It calls the table and, over gRPC, other routers.
//
// Life: New does no I/O. Run owns the seeker and ends with its context; a goroutine for each router
// that is given channels, or that publications are passed on to, lives while there are
// any; Run waits for them all.
//
// Invariants: a channel that was packed is given, lost or returned, once; a message that
// was not answered is sent again only to the same life of the receiver. What cannot be
// handed over in Config.Timeout is left to the store or begins a new epoch.
//
// Limits: a message has at most messageBytes and messageChannels, one for each receiver
// is under way.
package handover

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// Config of a Handover. All fields must be set.
type Config struct {
	ID              string                // of this router
	Wait            time.Duration         // longest a channel waits to be handed over to this router
	Grace           time.Duration         // who lost a channel and has not handed it over serves it on for this long
	Timeout         time.Duration         // longest the channels of one router are tried to be handed to another
	PassDeadline    time.Duration         // longest a publication that is passed on may take
	MaxChannelBytes int64                 // of events that are taken of one channel; past it the oldest go
	Registry        prometheus.Registerer // nil: nothing is registered
}

// Channels is what is handed over (table.Table).
type Channels interface {
	Pack(to string, most int, bytes int64) []*channel.Handed
	Given(*channel.Handed)
	Returned(*channel.Handed)
	Accept(*channel.Handed, *namespace.Namespace)
	Asked(by string, revision uint64, names []string) []gatewayv1.Taking
	Awaiting(names []string) []string
	Nobody(name string)
	Withdraw(to string)
	Viewed()
	Offered() int64
	Release(*channel.Publication)
}

// Peers has the connections to the other routers (presence/peers.Peers).
type Peers interface {
	// Conn makes the connection if need be, without waiting.
	Conn(*presence.Member) (*grpc.ClientConn, error)
	// Down says that a call would fail before it was sent.
	Down(*presence.Member) bool
}

// Deps is what a Handover calls.
type Deps struct {
	Channels   Channels
	Namespaces *namespace.Set
	Views      *views.Views
	Peers      Peers
	// Forward sends publications to their owner, or serves them here if that is known to
	// be safe. It returns when all are finished or queued, at the latest with ctx.
	Forward func(ctx context.Context, owner *presence.Member, pubs []*channel.Publication)
	Log     *slog.Logger
}

// Handover is the hand-overs of one router.
type Handover struct {
	// immutable after New
	Deps
	cfg     Config
	life    uint64 // random, new with every start
	metrics *metrics
	seeker  seeker

	closed atomic.Bool // takes nothing more
	failed atomic.Bool // a router that should have taken channels cannot be reached

	work    context.Context // of givers and passers; cut ends it
	cut     context.CancelFunc
	running sync.WaitGroup // givers and passers

	mu      sync.Mutex // guards below
	ended   bool       // no goroutine is begun any more
	givers  map[string]*giver
	passers map[way]*passer
	taken   map[string]*receiver // by giver
}

// New makes a Handover.
func New(cfg Config, deps Deps) *Handover {
	h := &Handover{
		Deps: deps, cfg: cfg, life: rand.Uint64() | 1, metrics: newMetrics(cfg.Registry), seeker: newSeeker(),
		givers: make(map[string]*giver), passers: make(map[way]*passer), taken: make(map[string]*receiver),
	}
	h.work, h.cut = context.WithCancel(context.Background())
	return h
}

// Run asks for channels until ctx ends.
func (h *Handover) Run(ctx context.Context) error { return h.seek(ctx) }

// Leave gives everything to those who own it without this router, until ctx ends.
func (h *Handover) Leave(ctx context.Context) {
	defer h.closed.Store(true)
	if len(h.Views.Others()) == 0 {
		return // nobody stays
	}
	h.awaitEcho(ctx)
	h.Views.Depart()
	h.failed.Store(false)
	began := time.Now()
	h.Channels.Viewed()
	for pause(ctx, 5*time.Millisecond) {
		if h.Channels.Offered() > 0 {
			continue
		}
		if h.failed.Load() { // all are given that can be
			break
		}
		h.Channels.Viewed() // what was busy, or came back
		// Past the grace nothing more is served here: what is left was busy all the time.
		if h.Channels.Offered() == 0 || time.Since(began) > h.cfg.Grace {
			break
		}
	}
	h.Log.Info("channels were handed over", "left", h.Channels.Offered(), "took", time.Since(began))
}

// End lets no goroutine begin any more and waits for those that there are, until ctx ends;
// then it cuts them off.
func (h *Handover) End(ctx context.Context) {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	ended := make(chan struct{})
	// It ends with the last of them, soon after the cut; End waits for it.
	go func() {
		h.running.Wait()
		close(ended)
	}()
	defer h.cut()
	select {
	case <-ended:
	case <-ctx.Done():
		h.Log.Warn("calls to other routers were cut off: they did not end in time")
		h.cut()
		<-ended
	}
}

// awaitEcho waits until this router's own view shows that it leaves: the others'
// do at about the same time, and then send here nothing more.
func (h *Handover) awaitEcho(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Wait/2)
	defer cancel()
	for {
		changed := h.Views.Changed()
		there := false
		for _, m := range h.Views.Snapshot().Routers() {
			there = there || m.Id == h.cfg.ID
		}
		if !there {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
