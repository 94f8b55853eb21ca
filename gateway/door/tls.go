package door

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/inbox"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/tlsconn"
	"github.com/spillway-io/spillway/gateway/settings"
)

// secure is the first of the two gates of an edge that ends TLS: what a visitor goes
// through before its request can be read, and before anything can be told to it.
//
//	accept -> knocking (waits unread for a handshake's worth of CPU) -> shaking -> reading
//	              \-> reset: its time was up, or too many wait
type secure struct {
	// immutable after newSecure
	cfg        *tls.Config
	affordable int // handshakes a second, by what one costs here

	spoke    inbox.Inbox[uint64]      // handshakes with something to do, by their visitor's token
	expected inbox.Inbox[expectation] // from the bus

	// owned by the door
	gate  *admission.Handshakes
	rates *settings.Hot // the settings that gate has
}

// expectation is where clients will come from that a confirmed grant is for.
type expectation struct {
	sources []netip.Addr
	until   time.Time
}

// handshakeShare is the most of the cores' time that handshakes may take.
const handshakeShare = 0.6

// newSecure measures what a handshake costs here.
func newSecure(cfg *Config, rates *settings.Hot, wake func(), now time.Time) (*secure, error) {
	s := &secure{cfg: cfg.TLS.Clone(), rates: rates}
	s.cfg.SessionTicketsDisabled = true // resumption saves nothing here, and costs memory
	cost, err := tlsconn.Cost(s.cfg)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	s.affordable = max(int(handshakeShare*float64(runtime.GOMAXPROCS(0))/cost.Seconds()), 1)
	if rates.TLSHandshakesPerSecond == 0 {
		cfg.Log.Info("TLS handshakes are bounded by their cost", "cost", cost, "per_second", s.affordable)
	}
	if why := tlsconn.SlimOff(); why != "" {
		cfg.Log.Warn("idle TLS conns keep the buffers of their handshakes, 3.5 KB each", "reason", why)
	}
	s.gate = admission.NewHandshakes(s.perSecond(), rates.Admission.Wait, rates.Admission.MaxWaiting, now)
	s.spoke.Wake, s.expected.Wake = wake, wake
	return s, nil
}

func (s *secure) perSecond() float64 {
	return float64(cmp.Or(s.rates.TLSHandshakesPerSecond, s.affordable))
}

// rerate takes settings that have changed.
func (s *secure) rerate(rates *settings.Hot, now time.Time) {
	if s.rates != rates {
		s.rates = rates
		s.gate.Set(s.perSecond(), rates.Admission.Wait, rates.Admission.MaxWaiting, now)
	}
}

// expect lets the clients of a confirmed grant pass first.
func (s *secure) expect(sources []string, until time.Time) {
	addrs := make([]netip.Addr, 0, len(sources))
	for _, source := range sources {
		if a, err := netip.ParseAddr(source); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	if len(addrs) > 0 {
		s.expected.Post(expectation{addrs, until})
	}
}

// knock decides about a socket that was just accepted and is kept.
func (d *Door) knock(v *visitor, now time.Time) {
	switch d.secure.gate.Arrive(v.token, v.sock.RemoteAddr().Addr().Unmap(), now) {
	case admission.Admit:
		d.shake(v, now)
	case admission.Wait:
		v.stage = stageKnocking
		if d.poller.SetRead(v.sock, false) != nil {
			d.hungUp(v)
		}
	default:
		d.resetKnocking(v)
	}
}

// resetKnocking ends a visitor that nothing can be told to.
func (d *Door) resetKnocking(v *visitor) {
	d.metrics.refused(refusedTLS)
	d.forget(v)
	v.sock.Reset()
}

// shake begins a visitor's handshake; HandshakeTimeout is for it and the request.
func (d *Door) shake(v *visitor, now time.Time) {
	if v.stage == stageKnocking && d.poller.SetRead(v.sock, true) != nil {
		d.hungUp(v)
		return
	}
	token := v.token
	v.stage, v.deadline = stageShaking, now.Add(d.cfg.HandshakeTimeout)
	v.shake = tlsconn.Begin(v.sock, d.secure.cfg, func() { d.secure.spoke.Post(token) })
	d.metrics.tlsHandshakes.Inc()
}

// feedShake gives the handshake what the socket has.
func (d *Door) feedShake(v *visitor) {
	n, err := v.sock.Read(d.buf)
	if errors.Is(err, poller.ErrAgain) {
		return
	}
	if err != nil || v.shake.Feed(d.buf[:n]) != nil {
		d.end(v)
	}
}

// stepShake does what the handshake wants: writes, or goes on with the request.
func (d *Door) stepShake(v *visitor) {
	conn, done, err := v.shake.Step()
	switch {
	case !done:
		return
	case err != nil || d.poller.Remove(v.sock) != nil:
		d.metrics.refused(refusedHandshake)
		d.end(v)
		return
	}
	d.forget(v)
	v.shake, v.sock, v.stage = nil, conn, stageReading
	d.keep(v)
}

// turnSecure begins handshakes whose turn has come, and does what those under way want.
func (d *Door) turnSecure(now time.Time) {
	s := d.secure
	if s == nil {
		return
	}
	s.rerate(d.Gate.settings.Load(), now)
	for _, x := range s.expected.Take() {
		s.gate.Expect(x.sources, x.until, now)
	}
	for _, token := range s.spoke.Take() {
		if v := d.visitors[token]; v != nil && v.stage == stageShaking {
			d.stepShake(v)
		}
	}
	s.gate.Serve(now,
		func(token uint64) { d.shake(d.visitors[token], now) },
		func(token uint64) { d.resetKnocking(d.visitors[token]) })
}
