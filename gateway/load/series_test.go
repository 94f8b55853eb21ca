package load

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// listener hears figures as a router does: it counts each window once.
type listener map[uint64]*gatewayv1.Window

func (l listener) hear(t *testing.T, windows []*gatewayv1.Window) {
	t.Helper()
	for i, w := range windows {
		if i > 0 && windows[i-1].StartMs >= w.StartMs {
			t.Errorf("windows are not in order: %d after %d", w.StartMs, windows[i-1].StartMs)
		}
		if had := l[w.StartMs]; had != nil && !proto.Equal(had, w) {
			t.Errorf("a window changed after it was told:\n%v\n%v", had, w)
		}
		l[w.StartMs] = w
	}
}

func (l listener) sum() (n uint32) {
	for _, w := range l {
		n += w.Moved + w.Resumed + w.Fresh
	}
	return n
}

var oneRouter = map[string]uint64{"router-1": 1}

// A figure now and then is lost, and the bus is away for minutes: whoever listens
// has every window in the end.
func TestLostFiguresLoseNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, router := New(time.Now()), listener{}
		heard, admitted := uint64(0), uint32(0)
		for seq := uint64(1); seq <= 500; seq++ {
			for range 5 {
				s.Add(Resumed)
				admitted++
				time.Sleep(WindowLength)
			}
			windows := s.Tell(seq, heard, oneRouter, time.Now())
			if len(windows) > windowsTold {
				t.Fatalf("%d windows in a figure, want at most %d", len(windows), windowsTold)
			}
			if away := seq > 50 && seq < 200; seq == 1 || !away && seq%7 != 0 {
				router.hear(t, windows)
				heard = seq
			}
		}
		if router.sum() != admitted {
			t.Errorf("heard of %d admissions, want %d", router.sum(), admitted)
		}
	})
}

// A router that comes new hears the ten minutes within 70 s, while the newest
// windows go on in every figure.
func TestNewRouterHearsTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(time.Now())
		seq, heard := uint64(0), uint64(0)
		tell := func(routers map[string]uint64) []*gatewayv1.Window {
			for range 5 {
				s.Add(Fresh)
				time.Sleep(WindowLength)
			}
			seq++
			windows := s.Tell(seq, heard, routers, time.Now())
			heard = seq
			return windows
		}
		for range 700 {
			tell(oneRouter)
		}
		if n := len(tell(oneRouter)); n != windowsRepeated {
			t.Errorf("%d windows in a figure of a quiet cluster, want %d", n, windowsRepeated)
		}
		fresh := listener{}
		for range 70 {
			windows := tell(map[string]uint64{"router-1": 1, "router-2": 9})
			fresh.hear(t, windows)
			if newest := windows[len(windows)-1].StartMs; newest != startMS(s.number(time.Now())-1) {
				t.Fatalf("the newest window told is %d", newest)
			}
		}
		if len(fresh) < windowsKept-5 {
			t.Errorf("a new router knows %d windows after 70 s, want about %d", len(fresh), windowsKept)
		}
		if n := len(tell(map[string]uint64{"router-1": 1, "router-2": 9})); n != windowsRepeated {
			t.Errorf("%d windows in a figure afterwards, want %d", n, windowsRepeated)
		}
	})
}

// However long the names in them are, the windows of a figure fit into the bound of the
// bus adapter, and every one of them comes.
func TestLongNamesStayInBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, router := New(time.Now()), listener{}
		admitted := uint32(0)
		for seq := uint64(1); seq <= 100; seq++ {
			for range 5 {
				for i := range 100 {
					if seq < 10 {
						s.Add(Moved)
						s.CameFrom(fmt.Sprintf("edge-%03d-%s", i, strings.Repeat("x", 240)))
						admitted++
					}
				}
				time.Sleep(WindowLength)
			}
			f := &gatewayv1.LoadFigure{Windows: s.Tell(seq, seq-1, oneRouter, time.Now())}
			if n := proto.Size(f); n > 2*windowBytes+1<<10 {
				t.Fatalf("figure %d has %d bytes", seq, n)
			}
			router.hear(t, f.Windows)
		}
		if router.sum() != admitted {
			t.Errorf("heard of %d admissions, want %d", router.sum(), admitted)
		}
		for _, w := range router {
			if len(w.From) > originsNamed+1 {
				t.Fatalf("a window names %d edges", len(w.From))
			}
		}
	})
}

// An edge on which nothing happens says one empty window, its clock.
func TestQuietEdgeSaysOneWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(time.Now())
		time.Sleep(time.Second)
		windows := s.Tell(1, 0, oneRouter, time.Now())
		if len(windows) != 1 || !proto.Equal(windows[0], &gatewayv1.Window{StartMs: startMS(s.number(time.Now()) - 1)}) {
			t.Errorf("told %v", windows)
		}
		size := proto.Size(&gatewayv1.LoadFigure{Id: "edge-1", Windows: windows})
		if size > 32 {
			t.Errorf("a quiet figure has %d bytes", size)
		}
	})
}

func BenchmarkSeries(b *testing.B) {
	s := New(time.Now())
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			s.Add(CaughtUp)
		}
	})
}
