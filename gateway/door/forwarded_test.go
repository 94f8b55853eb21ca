package door

import (
	"net/netip"
	"testing"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

func TestTheClientsAddressIsTheLastOneThatNoProxyHas(t *testing.T) {
	p := proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for _, c := range []struct{ peer, header, want string }{
		{"192.0.2.1", "X-Forwarded-For: 198.51.100.7\r\n", ""}, // whoever it is, it is believed nothing
		{"10.0.0.1", "X-Forwarded-For: 198.51.100.7\r\n", "198.51.100.7"},
		{"::ffff:10.0.0.1", "x-forwarded-for: 198.51.100.7:4711\r\n", "198.51.100.7"},
		{"10.0.0.1", "X-Forwarded-For: 203.0.113.9, 198.51.100.7, 10.2.0.1\r\n", "198.51.100.7"}, // the first one may be made up
		{"10.0.0.1", "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 198.51.100.7\r\n", "198.51.100.7"},
		{"2001:db8::1", "X-Forwarded-For: [2001:db9::5]:80\r\n", "2001:db9::5"},
		{"10.0.0.1", "X-Forwarded-For: 198.51.100.7, unknown\r\n", "invalid IP"},
		{"10.0.0.1", "X-Forwarded-For: 10.0.0.2\r\n", "invalid IP"},
		{"10.0.0.1", "", "invalid IP"},
	} {
		r, err := wsframe.ParseRequest([]byte("GET /v1/ws HTTP/1.1\r\nHost: edge.example\r\n" + c.header + "\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if a := p.client(netip.MustParseAddr(c.peer), r); a != nil {
			got = a.String()
		}
		if got != c.want {
			t.Errorf("%s, %q: %s, want %s", c.peer, c.header, got, c.want)
		}
	}
}
