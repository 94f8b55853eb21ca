package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxHTTPConns bounds sockets of the HTTP listener; more wait unaccepted.
	maxHTTPConns = 4096
	// maxHTTPBytes bounds the bodies of all requests together.
	maxHTTPBytes = 64 << 20
)

// web serves the router's API as JSON over HTTP. A request is decoded into the
// message of the gRPC call and handed to the same service, with the same keys and
// deadlines.
//
// Life: listen opens the port, run serves until stop has ended. Goroutines are
// those of net/http, one for each connection; stop waits for them.
type web struct {
	// immutable after newWeb
	api    *Server
	secure *tls.Config // nil: plain text
	server *http.Server
	end    context.CancelFunc // ends the context of all requests

	bytes atomic.Int64 // of bodies held now, 0 <= bytes <= maxHTTPBytes

	mu       sync.RWMutex // guards below
	listener net.Listener // nil: not listening
	closed   bool         // no request is let in any more

	requests sync.WaitGroup // those let in
}

// newWeb is nil if the configuration names no address.
func newWeb(s *Server) *web {
	if s.cfg.HTTPListen == "" {
		return nil
	}
	ctx, end := context.WithCancel(context.Background())
	w := &web{api: s, secure: s.cfg.HTTPTLS, end: end}
	w.server = &http.Server{
		Handler: w.handler(), TLSConfig: w.secure,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		// Bodies have a deadline of their own (serve): ReadTimeout would go on while the
		// call is under way, and end it. A body, a call and its answer fit in here.
		WriteTimeout: 3 * s.cfg.CallDeadline,
		// Broken handshakes of strangers and the like.
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return w
}

func (w *web) listen(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", w.api.cfg.HTTPListen)
	if err != nil {
		return fmt.Errorf("http listen: %w", err)
	}
	w.listener = listener
	return nil
}

func (w *web) addr() string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.listener == nil {
		return ""
	}
	return w.listener.Addr().String()
}

func (w *web) run() (err error) {
	limited := netutil.LimitListener(w.listener, maxHTTPConns)
	if w.secure != nil {
		err = w.server.ServeTLS(limited, "", "")
	} else {
		err = w.server.Serve(limited)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

// stop lets calls end until ctx does, then cuts them off. It returns when no
// handler runs any more.
func (w *web) stop(ctx context.Context) {
	if err := w.server.Shutdown(ctx); err != nil {
		w.api.log.Warn("http calls were cut off: they did not end in time")
	}
	_ = w.server.Close()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	w.requests.Wait()
}

// enter lets a request in; false: the router has stopped.
func (w *web) enter() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return false
	}
	w.requests.Add(1)
	return true
}

// ListenHTTP opens the port of the HTTP API, if there is one, so that HTTPAddr is
// known before Run. Run calls it if nobody has.
func (s *Server) ListenHTTP(ctx context.Context) error {
	if s.web == nil {
		return nil
	}
	return s.web.listen(ctx)
}

// HTTPAddr is where the HTTP API listens; "" before ListenHTTP and without one.
func (s *Server) HTTPAddr() string {
	if s.web == nil {
		return ""
	}
	return s.web.addr()
}

// httpBytes is what bodies hold now.
func (s *Server) httpBytes() float64 {
	if s.web == nil {
		return 0
	}
	return float64(s.web.bytes.Load())
}
