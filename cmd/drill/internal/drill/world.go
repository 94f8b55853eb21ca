package drill

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	"github.com/spillway-io/spillway/cmd/internal/run"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	perChannel = 10 // clients, where a scenario does not say otherwise
	namespace  = "drill"
	callTime   = 10 * time.Second
	lead       = 5 * time.Second // of the curve, before the incident
)

// world is a cluster with its clients while a scenario runs. Owned by Run's goroutine
// but for the publisher.
type world struct {
	o       Options
	ctx     context.Context
	c       *cluster.Cluster // nil: a given one
	admin   routerv1.AdminServiceClient
	history routerv1.HistoryServiceClient
	conn    *grpc.ClientConn // to a given router
	gen     *loadgen.Parent
	front   front // nil: edges have addresses of their own
	secret  []byte

	pub     *publisher         // of the clients' channels
	live    *publisher         // of channels without history; nil: there are none
	stopPub context.CancelFunc // of both

	report *Report
	t0     time.Time // the incident begins; zero: it has not
	quiet  reading   // of the store, when publishing began
	reads0 reading   // at t0
	before map[string]uint64
	newest time.Time       // when routers were started last; backfill
	seen   *loadgen.Report // after settled
	op     *routerv1.Operation
	admins map[string]routerv1.AdminServiceClient // of every router; outage
}

// front is one address before all edges.
type front interface {
	URL() string
	Close() error
}

// Run does one drill, and its second run if it has one. The report is there also where
// a promise was broken; the error says that the drill itself could not be done.
func Run(ctx context.Context, o Options) (*Report, error) {
	s, ok := find(o.Scenario)
	if ok && s.tune != nil {
		s.tune(&o)
	}
	if err := o.Validate(); err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	report, err := once(ctx, o, s)
	if err != nil || s.second == nil {
		return report, err
	}
	judged, note := s.second(&o)
	if o.Out != nil {
		_, _ = fmt.Fprintf(o.Out, "\nagain: %s\n", note)
	}
	beside, err := once(ctx, o, s)
	if err != nil {
		return report, err
	}
	beside.Note, report.Beside = note, beside
	report.Kept = report.Kept && (beside.Kept || !judged)
	return report, nil
}

func once(ctx context.Context, o Options, s scenario) (*Report, error) {
	w := &world{o: o, ctx: ctx, report: newReport(&o, run.Version())}
	err := w.begin()
	if err == nil {
		err = s.run(w)
	}
	if err == nil && w.seen == nil {
		err = errors.New("the scenario ended without a look at its clients")
	}
	if err != nil {
		err = w.explain(err)
	}
	if end := w.close(); err == nil {
		err = end
	}
	w.report.judge()
	return w.report, err
}

// explain adds what parts that ended by themselves said last.
func (w *world) explain(err error) error {
	if w.c == nil {
		return err
	}
	for _, p := range w.c.Processes() {
		if !p.Running() && p.ExitCode() > 0 {
			err = fmt.Errorf("%w; %s exited with %d: %s", err, p.Name, p.ExitCode(), p.LogTail(1))
		}
	}
	return err
}

func (w *world) close() error {
	w.stopPublishing()
	var errs []error
	if w.gen != nil {
		errs = append(errs, w.gen.Close())
	}
	if w.front != nil {
		errs = append(errs, w.front.Close())
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	if w.c != nil {
		errs = append(errs, w.c.Close())
	}
	return errors.Join(errs...)
}

// stopPublishing waits for the last acks. Idempotent.
func (w *world) stopPublishing() {
	if w.stopPub == nil {
		return
	}
	w.stopPub()
	w.stopPub = nil
	<-w.pub.done
	if w.live != nil {
		<-w.live.done
	}
}

// step tells what is done.
func (w *world) step(format string, args ...any) {
	at := int64(0)
	if !w.t0.IsZero() {
		at = time.Since(w.t0).Milliseconds()
	} else {
		at = -time.Since(w.report.Began).Milliseconds()
	}
	text := fmt.Sprintf(format, args...)
	w.report.Steps = append(w.report.Steps, Step{at, text})
	if w.o.Out != nil {
		clock := "      "
		if !w.t0.IsZero() {
			clock = fmt.Sprintf("%5.1fs", time.Since(w.t0).Seconds())
		}
		_, _ = fmt.Fprintf(w.o.Out, "%s  %s\n", clock, text)
	}
}

// promise judges one.
func (w *world) promise(kept bool, promise, format string, args ...any) {
	w.report.Verdicts = append(w.report.Verdicts, Verdict{promise, fmt.Sprintf(format, args...), kept})
}

// begin has the cluster up, full of clients and busy.
func (w *world) begin() error {
	if err := w.cluster(); err != nil {
		return err
	}
	if err := w.fill(); err != nil {
		return err
	}
	if w.o.still {
		return nil
	}
	publishing, stop := context.WithCancel(w.ctx)
	w.stopPub = stop
	go w.pub.run(publishing) // ends with its context; stopPublishing waits for it
	if w.live != nil {
		go w.live.run(publishing) // as well
	}
	w.step("publishing %d events a second to %d channels", w.o.Rate, len(w.pub.channels))
	if err := w.pause(w.o.Steady / 2); err != nil { // heads are loaded once
		return err
	}
	w.quiet = w.reading()
	return w.pause(w.o.Steady / 2)
}

func (w *world) cluster() error {
	if w.o.Server != "" {
		return w.given()
	}
	w.secret = []byte(rand.Text())
	cfg := cluster.Config{
		Binary: w.o.Binary, Dir: w.o.Keep, Edges: w.o.Edges, Spare: w.o.Spare, Store: w.o.Store,
		Namespaces: "{" + namespace + ": {history_size: 1000, history_ttl: 1h}, live: {durability: none}}",
		Edge:       w.edgeConfig, SeparateInfra: true,
	}
	began := time.Now()
	var err error
	if w.c, err = cluster.Start(w.ctx, cfg); err != nil {
		return err
	}
	w.report.Store = w.o.Store
	if w.report.Store == "" {
		w.report.Store = cluster.SQLite
	}
	w.newest = time.Now()
	router := w.c.Routers()[0]
	conn, err := w.c.Dial(router)
	if err != nil {
		return err
	}
	w.clients(conn)
	if w.o.OneAddress != "" {
		if w.front, err = newFront(w); err != nil {
			return err
		}
	}
	w.step("a cluster of %d edges and %d routers with %s, %.1f s", w.o.Edges, len(w.c.Routers()), w.report.Store, time.Since(began).Seconds())
	return nil
}

func (w *world) given() error {
	conn, err := run.Dial(w.o.Server, w.o.APIKeyFile, w.o.CAFile)
	if err != nil {
		return err
	}
	w.conn, w.secret = conn, w.o.Secret
	w.clients(conn)
	return nil
}

func (w *world) clients(conn *grpc.ClientConn) {
	w.admin, w.history = routerv1.NewAdminServiceClient(conn), routerv1.NewHistoryServiceClient(conn)
	to := routerv1.NewPublisherServiceClient(conn)
	w.pub = newPublisher(to, w.channels(w.subscription()), w.o.Rate)
	if w.o.Live {
		w.live = newPublisher(to, w.channels(w.liveSubscription()), w.o.Rate)
	}
	w.reach(w.o.Clients - w.o.late)
}

// reach has the channels of the first n clients published to: who comes late hears
// nothing of what was before, and is not to be waited for.
func (w *world) reach(n int) {
	for _, p := range []*publisher{w.pub, w.live} {
		if p != nil {
			p.reach((n + w.o.InChannel() - 1) / w.o.InChannel())
		}
	}
}

// Each client has a channel with history and, where a scenario wants it, one without.
func (w *world) subscription() loadgen.Subscription {
	return loadgen.Subscription{Format: namespace + ":%d", Every: w.o.InChannel()}
}

func (w *world) liveSubscription() loadgen.Subscription {
	return loadgen.Subscription{Format: "live:%d", Every: w.o.InChannel()}
}

func (w *world) channels(s loadgen.Subscription) (all []string) {
	for i := range (w.o.Clients + s.Every - 1) / s.Every {
		all = append(all, s.Channel(i*s.Every))
	}
	return all
}

// members is how many clients a channel has.
func (w *world) members(channel int) int {
	return min(w.o.InChannel(), w.o.Clients-channel*w.o.InChannel())
}

// edgeConfig is an edge's file beyond what the cluster writes.
func (w *world) edgeConfig(c *cluster.Cluster, n int) string {
	secret := filepath.Join(c.Dir(), "secret")
	if n == 0 {
		if err := os.WriteFile(secret, w.secret, 0o600); err != nil {
			return "error: " + err.Error() // the edge refuses it, and says so
		}
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if w.o.OneAddress == "" {
		line("advertise_url: %q", "{url}")
	}
	if w.o.Scenario == "evacuate" {
		line("region: %s", []string{"east", "west"}[n%2])
	}
	line("auth: {hs256_secret_file: %q}", secret)
	line("limits: {max_conns: %d, margin: %d}", w.o.MaxConns, w.o.MaxConns/40)
	line("admission: %s", w.o.Admission.yaml())
	line("heartbeat: {ping_interval: %s, pong_timeout: %s}", w.o.Ping, w.o.Ping/3)
	line("rebalance: {surplus: %d}", max(w.o.Clients/w.o.Edges/20, 10))
	line("drain: {deadline: %s, notice: %s}", w.o.Deadline, w.o.Notice)
	return b.String()
}

func (l Lanes) yaml() string {
	text := fmt.Sprintf("{fresh_per_second: %d, fresh_burst: %d, resume_per_second: %d, moved_per_second: %d", l.Fresh, l.Burst, l.Resume, l.Moved)
	if l.Off {
		text += ", enabled: false"
	}
	return text + "}"
}

// targets are where clients connect.
func (w *world) targets() []string {
	switch {
	case w.c == nil:
		return []string{w.o.Edge}
	case w.front != nil:
		return []string{w.front.URL()}
	}
	var urls []string
	for _, e := range w.c.Edges() {
		urls = append(urls, e.URL())
	}
	return urls
}

// fill connects all clients, with the fresh lanes lifted for the time of it.
func (w *world) fill() error {
	policy, err := loadgen.NamedPolicy(w.o.Policy)
	if err != nil {
		return err
	}
	cfg := loadgen.Default()
	cfg.Targets, cfg.Max, cfg.Rate, cfg.InFlight = w.targets(), w.o.Clients, w.o.FillRate, 400
	cfg.Subscriptions, cfg.Secret = []loadgen.Subscription{w.subscription()}, w.secret
	if w.live != nil {
		cfg.Subscriptions = append(cfg.Subscriptions, w.liveSubscription())
	}
	cfg.Policy, cfg.Plain, cfg.CheckPayload = policy, w.o.Policy != "sdk", true
	w.o.Generator(&cfg)
	pc := loadgen.ParentConfig{Children: w.o.Generators}
	if pc.Command, err = w.command("loadgen"); err != nil {
		return err
	}
	if w.gen, err = loadgen.Start(w.ctx, pc, cfg); err != nil {
		return err
	}
	w.lift(true)
	began := time.Now()
	n := w.o.Clients - w.o.late
	if err := w.gen.Want(n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute+3*time.Duration(w.o.Clients/w.o.FillRate)*time.Second)
	defer cancel()
	if err := w.gen.AwaitUp(ctx, n); err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	w.lift(false)
	w.step("%d clients are connected, policy %s, %.1f s", n, w.o.Policy, time.Since(began).Seconds())
	return nil
}

// lift raises the fresh lane of all edges by hot reload, or lets it down again. Edges
// that are not full yet do not hand over what others lack for the moment.
func (w *world) lift(up bool) {
	yaml, what := "", "let down again"
	if up {
		yaml, what = fmt.Sprintf("admission: {fresh_per_second: %d, fresh_burst: %d}\nrebalance: {off: true}", w.o.FillRate, w.o.FillRate), "lifted by hot reload"
	}
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	if _, err := w.admin.PutSettings(ctx, &routerv1.PutSettingsRequest{Yaml: yaml}); err != nil {
		w.step("the fresh lane could not be changed: %v", err)
		return
	}
	w.step("the fresh lane is %s", what)
}

// pause lets the clients be for a while.
func (w *world) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// eventually waits for a condition.
func (w *world) eventually(within time.Duration, what string, ok func() bool) error {
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v still not: %s", within, what)
		}
		if err := w.pause(100 * time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
