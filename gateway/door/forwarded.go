package door

import (
	"net/netip"
	"slices"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// proxies are what stands in front and says in X-Forwarded-For whom it speaks for.
// Others may write there what they like: nobody reads it.
//
// The address serves one end: a leaving edge tells receivers that end TLS where its
// clients will come from (package leave). No limit is by address.
type proxies []netip.Prefix

func (p proxies) has(a netip.Addr) bool {
	a = a.Unmap()
	return slices.ContainsFunc(p, func(x netip.Prefix) bool { return x.Contains(a) })
}

// client is where a request of a peer comes from: the last one named that is no proxy
// itself. nil: the peer is no proxy, so it is the client. Invalid: it cannot be told;
// a proxy's own address would stand for everybody behind it.
func (p proxies) client(peer netip.Addr, r *wsframe.Request) *netip.Addr {
	if !p.has(peer) {
		return nil
	}
	from := netip.Addr{}
	named := slices.Collect(r.List("X-Forwarded-For"))
	for _, text := range slices.Backward(named) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			port, portErr := netip.ParseAddrPort(text)
			if portErr != nil {
				break // whoever wrote that: what is left of it is no better
			}
			a = port.Addr()
		}
		if a = a.Unmap(); !p.has(a) {
			from = a
			break
		}
	}
	return &from
}
