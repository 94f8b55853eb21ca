package gateway

import (
	"bufio"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestALeavingEdgeNamesClientsBehindABalancer(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	c, err := net.DialTimeout("tcp", w.edge.Addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	request := strings.Replace(secureUpgrade, "Host:", "X-Forwarded-For: 203.0.113.9, 198.51.100.7\r\nHost:", 1)
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	if response, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || response.StatusCode != 101 {
		t.Fatalf("%v, %v", response, err)
	}
	eventually(t, "its conn is in a loop", func() bool {
		found := make(chan []string, len(w.edge.loops))
		for _, l := range w.edge.loops {
			l.inbox.Post(inspection(func(l *loop) {
				var from []string
				for _, c := range l.slots {
					if c != nil {
						from = append(from, leaves(c).From().String())
					}
				}
				found <- from
			}))
		}
		var all []string
		for range w.edge.loops {
			all = append(all, <-found...)
		}
		return len(all) == 1 && all[0] == "198.51.100.7"
	})
}
