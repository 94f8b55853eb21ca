package loadgen

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

const (
	// MaxConns leaves some of 20,000 descriptors for the rest.
	MaxConns = 19_500
	// SourceConns is how many connections may come from one source address.
	SourceConns = 4_000
	// Bucket is the width of a report's time series.
	Bucket = 200 * time.Millisecond
)

// Config says what the clients of one generator do. It travels as JSON.
type Config struct {
	Targets       []string       `json:"targets"`       // ws://IPv4:port/v1/ws, as the addresses of one name: at first clients take turns, later one is drawn
	First         int            `json:"first"`         // number of the first client; Parent gives each child its own range
	Max           int            `json:"max"`           // most clients that will be wanted, at most MaxConns
	Sources       []string       `json:"sources"`       // local IPv4 addresses, taken in turn; none: the kernel's choice
	Subscriptions []Subscription `json:"subscriptions"` // of each client
	Secret        []byte         `json:"secret"`        // HS256: clients bring tokens, user c<number>; none: no token

	Rate         int    `json:"rate"`          // first connects of clients begun in a second; 0: no bound
	InFlight     int    `json:"in_flight"`     // first connects begun and not yet connected; default 200
	Policy       Policy `json:"policy"`        // after a loss; default: stays away
	Plain        bool   `json:"plain"`         // offers no subprotocol: a client of another make
	CheckPayload bool   `json:"check_payload"` // data is made by package payload
}

// Subscription is a channel of each client: client n is one of the Every clients of
// channel number n/Every.
type Subscription struct {
	Format string `json:"format"` // of the name; its %d is the number, if Every is not 0
	Every  int    `json:"every"`  // 0: one channel for all
}

// Channel is the name for one client.
func (s Subscription) Channel(client int) string {
	if s.Every == 0 {
		return s.Format
	}
	return fmt.Sprintf(s.Format, client/s.Every)
}

// Default has all but targets, a number of clients and subscriptions.
func Default() Config {
	return Config{InFlight: 200}
}

// Validate reports all problems at once.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%s: %v: %s", field, value, rule))
	}
	if len(c.Targets) == 0 {
		bad("targets", "[]", "must name at least one")
	}
	for _, t := range c.Targets {
		if _, err := parseTarget(t); err != nil {
			bad("targets", t, err.Error())
		}
	}
	for _, s := range c.Sources {
		if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
			bad("sources", s, "must be IPv4 addresses")
		}
	}
	if c.Max < 1 || c.Max > MaxConns {
		bad("max", c.Max, fmt.Sprintf("must be between 1 and %d", MaxConns))
	}
	for _, s := range c.Subscriptions {
		if s.Every < 0 || s.Every > 0 != strings.Contains(s.Format, "%d") || strings.Count(s.Format, "%") > 1 {
			bad("subscriptions", s.Format, "%d and every go together")
		}
	}
	if c.InFlight < 1 {
		bad("in_flight", c.InFlight, "must be positive")
	}
	if c.Rate < 0 {
		bad("rate", c.Rate, "must not be negative")
	}
	if _, err := c.Policy.foreign(); err != nil {
		bad("policy", c.Policy.Kind, err.Error())
	}
	return errors.Join(errs...)
}

// target is where to connect.
type target struct {
	addr netip.AddrPort
	host string // for the Host header
	path string
}

func parseTarget(text string) (target, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "ws" {
		return target{}, errors.New("must be ws://IPv4:port/path")
	}
	host := u.Host
	if h, ok := strings.CutPrefix(host, "localhost:"); ok {
		host = "127.0.0.1:" + h
	}
	addr, err := netip.ParseAddrPort(host)
	if err != nil || !addr.Addr().Is4() {
		return target{}, errors.New("must be ws://IPv4:port/path")
	}
	return target{addr, u.Host, u.RequestURI()}, nil
}

// Loopback gives generator number i of a machine source addresses of its own for
// conns connections.
func Loopback(i, conns int) []string {
	var sources []string
	for n := range (conns + SourceConns - 1) / SourceConns {
		sources = append(sources, fmt.Sprintf("127.0.%d.%d", 10+i%240, 1+n))
	}
	return sources
}
