package run

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// OpsConfig of an Ops listener.
type OpsConfig struct {
	Addr     string // host:port; port 0 picks one
	What     string // whose it is, for errors
	Key      string // the flag or key that changes Addr, for errors
	Ready    func() bool
	Registry *prometheus.Registry
	Pprof    bool
}

// Ops answers /metrics, /healthz, /readyz and, if asked, /debug/pprof/. It never shares a
// port with clients. It serves from ListenOps on, so that a node that waits for its
// database is alive already, until Run or Close ends it.
type Ops struct {
	listener net.Listener
	server   *http.Server
	served   chan error // what Serve returned; then closed
}

// ListenOps takes the port and serves it.
func ListenOps(ctx context.Context, cfg OpsConfig) (*Ops, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, ListenError(err, cfg.What, cfg.Addr, cfg.Key)
	}
	o := &Ops{listener: listener, served: make(chan error, 1), server: &http.Server{
		Handler: opsHandler(cfg), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}}
	// Serves; Run or Close ends it and waits.
	go func() {
		o.served <- o.server.Serve(listener)
		close(o.served)
	}()
	return o, nil
}

// ListenError turns a failed listen into a PortTakenError if it is one.
func ListenError(err error, what, addr, key string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return &PortTakenError{What: what, Addr: addr, Key: key}
	}
	return &UsageError{what + ": cannot listen on " + addr + ": " + rootCause(err)}
}

func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// Addr is where it listens.
func (o *Ops) Addr() string { return o.listener.Addr().String() }

// Close ends it at once. Idempotent; not needed after Run.
func (o *Ops) Close() {
	_ = o.server.Close()
	<-o.served
}

// Run waits until ctx ends; answers under way get a second then.
func (o *Ops) Run(ctx context.Context) error {
	select {
	case err := <-o.served:
		return err
	case <-ctx.Done():
	}
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = o.server.Shutdown(fresh) // fails if a profile is under way, say
	o.Close()
	return nil
}

func opsHandler(cfg OpsConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{}))
	// As long as the process turns, whatever else is down (I8).
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !cfg.Ready() {
			http.Error(w, "not joined yet, or leaving", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	if cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// NewRegistry has the figures of the process and of Go.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
