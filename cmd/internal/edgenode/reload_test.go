package edgenode

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/gateway"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// fakeEdge and fakeAgreed stand for the parts around a reloader.
type fakeEdge struct {
	mu      sync.Mutex // guards all below
	now     gateway.Settings
	taken   int
	refused int
}

func (e *fakeEdge) Reload(s gateway.Settings) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := s.Validate(); err != nil {
		e.refused++
		return err
	}
	e.now = s
	e.taken++
	return nil
}

func (e *fakeEdge) RefusedReload(error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused++
}

func (e *fakeEdge) state() (s gateway.Settings, taken, refused int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now, e.taken, e.refused
}

type fakeAgreed struct {
	mu      sync.Mutex // guards all below
	text    string
	changed chan struct{}
}

func (a *fakeAgreed) Settings() *gatewayv1.Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &gatewayv1.Settings{Yaml: a.text}
}

func (a *fakeAgreed) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

func (a *fakeAgreed) set(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = text
	close(a.changed)
	a.changed = make(chan struct{})
}

// The cluster's settings stand above the file, whichever changes; what is bad is
// refused whole and counted, and the old ones stay.
func TestSettingsOfTheClusterStandAboveTheFileAndBadOnesChangeNothing(t *testing.T) {
	file := gatewayfile.Default()
	next, readErr := file, error(nil)
	edge, agreed := &fakeEdge{}, &fakeAgreed{changed: make(chan struct{})}
	r := &reloader{edge: edge, agreed: agreed, log: slog.New(slog.DiscardHandler), file: &file, read: func() (*gatewayfile.File, error) {
		f := next
		return &f, readErr
	}}
	hangups := make(chan os.Signal)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.follow(ctx, hangups) }() // ended below
	defer func() { cancel(); <-done }()

	agreed.set("admission: {fresh_per_second: 50}\ndrain: {deadline: 60s}\n")
	eventually(t, "the cluster's settings are taken", func() bool { _, taken, _ := edge.state(); return taken == 1 })
	if s, _, _ := edge.state(); s.Admission.FreshPerSecond != 50 || s.DrainDeadline != time.Minute || s.Admission.ResumePerSecond != 300 {
		t.Errorf("%+v", s)
	}
	for i, bad := range []string{
		"admission: {fresh_per_second: 70, resume_per_second: -1}", "listen: 127.0.0.1:1", "admission: {color: red}", "a: [", "limits: {max_conns: 5}",
	} {
		agreed.set(bad)
		eventually(t, "refused: "+bad, func() bool { _, _, refused := edge.state(); return refused == i+1 })
	}
	if s, taken, _ := edge.state(); s.Admission.FreshPerSecond != 50 || taken != 1 {
		t.Errorf("bad settings changed something: %d %+v", taken, s)
	}
	next.Admission.ResumePerSecond, next.Admission.FreshPerSecond, next.Listen = 77, 10, "127.0.0.1:9"
	hangups <- syscall.SIGHUP
	eventually(t, "the file is read again", func() bool { _, taken, _ := edge.state(); return taken == 2 })
	if s, _, _ := edge.state(); s.Admission.ResumePerSecond != 77 || s.Admission.FreshPerSecond != 50 {
		t.Errorf("%+v", s)
	}
	readErr = errors.New("unreadable")
	hangups <- syscall.SIGHUP
	eventually(t, "a bad file is refused", func() bool { _, _, refused := edge.state(); return refused == 6 })
	agreed.set("")
	eventually(t, "nothing above the file", func() bool { _, taken, _ := edge.state(); return taken == 3 })
	if s, _, _ := edge.state(); s.Admission.ResumePerSecond != 77 || s.Admission.FreshPerSecond != 10 {
		t.Errorf("%+v", s)
	}
}
