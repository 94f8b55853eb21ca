package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports for servers: below those that the kernel gives to clients, so that a process that
// is away for a while finds its own free again.
const (
	firstPort = 12_000
	lastPort  = 32_000
)

// given holds the ports that this process has handed out: who got one listens on it
// only later, an edge in reserve minutes later. The one variable of its kind, since
// clusters side by side share nothing else.
var given sync.Map // port -> struct{}

// FreePort is a port of the loopback on which nobody listens now, and that nobody else
// in this process has got.
func FreePort() (int, error) {
	var last error
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, taken := given.LoadOrStore(port, struct{}{}); taken {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, ln.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("no free port: %w", last)
}
