package door

import (
	"math"

	"golang.org/x/sys/unix"
)

// Reserved descriptors let the door refuse when there are none left.
const Reserved = 16

// acceptFromReserve takes one client out of the backlog and resets it, so that the
// listener does not stay ready for ever.
func (d *Door) acceptFromReserve() {
	d.metrics.refused(refusedDescriptors)
	if d.deps.Reserve == nil || !d.deps.Reserve.Release() {
		return
	}
	if sock, err := d.deps.Listener.Accept(); err == nil {
		sock.Reset()
	}
	_ = d.deps.Reserve.Refill() // tried again the next time
}

// descriptorRoom is how many conns the process may hold beside half-open sockets, the
// reserve, and what else needs descriptors.
func descriptorRoom(handshakes int) int {
	const others = 128 // listeners, the bus, routers, files
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	most := int(min(limit.Cur, math.MaxInt32))
	return max(most-min(handshakes, most/8)-Reserved-others, 1)
}
