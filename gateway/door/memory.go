package door

import (
	"cmp"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	// memoryLive is the part of the limit that may be in use: garbage until its
	// collection, bursts and everything that is not counted need the rest.
	memoryLive = 0.6
	// What an idle conn takes at least, user and kernel memory together: 1.2 and 4.2 KB
	// measured, with TLS 3.7 KB more.
	leastConnBytes    = 6 << 10
	leastTLSConnBytes = 10 << 10
	// measuredFrom so many conns on their cost is measured, not assumed.
	measuredFrom = 500
	// kernelConnBytes of a socket are in no figure of the runtime.
	kernelConnBytes = 4_300

	noMemoryLimit = 1 << 50 // more is none: cgroup v1 says almost 2^63
)

// memory is how many conns the process's memory allows. It is a soft bound: it keeps
// newcomers out, and takes nothing from those who are there.
type memory struct {
	// immutable
	found int64 // limit of the environment, bytes; 0: none
	least int64 // bytes of a conn
	base  int64 // in use before the first conn

	room atomic.Int64 // conns; written by the door
}

func newMemory(tls bool) *memory {
	m := &memory{found: environmentLimit(os.DirFS("/"), debug.SetMemoryLimit(-1)), least: leastConnBytes, base: bytesInUse()}
	if tls {
		m.least = leastTLSConnBytes
	}
	m.room.Store(math.MaxInt)
	return m
}

// look measures, with a limit from the settings; 0: the environment's.
func (m *memory) look(limit int64, conns int) {
	if limit = cmp.Or(limit, m.found); limit == 0 {
		m.room.Store(math.MaxInt)
		return
	}
	m.room.Store(int64(memoryRoom(limit, bytesInUse()+int64(conns)*kernelConnBytes, m.base, m.least, conns)))
}

// memoryRoom is how many conns fit into a limit, of which inUse bytes are taken with
// conns of them there, and base were before the first.
func memoryRoom(limit, inUse, base, least int64, conns int) int {
	each := least
	if conns >= measuredFrom {
		each = max(each, (inUse-base)/int64(conns))
	}
	free := int64(memoryLive*float64(limit)) - inUse
	return max(conns+int(max(free, 0)/each), 1)
}

// bytesInUse is what lives in the heap, as of the last collection, and all stacks.
func bytesInUse() int64 {
	s := []runtimemetrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
	}
	runtimemetrics.Read(s)
	live := cmp.Or(s[0].Value.Uint64(), s[1].Value.Uint64()) // there may have been no collection yet
	return int64(live + s[2].Value.Uint64())
}

// environmentLimit is the least of GOMEMLIMIT and what the process's cgroup and those
// above it allow; 0: none. root is the file system.
func environmentLimit(root fs.FS, goLimit int64) int64 {
	least := goLimit
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // id:controllers:path
		if len(parts) != 3 {
			continue
		}
		top, file := "sys/fs/cgroup", "memory.max"
		switch {
		case parts[1] == "memory":
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[1] != "":
			continue
		}
		// Inside a container the path may be that of the host: what is not there is passed over.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			value, err := fs.ReadFile(root, path.Join(top, at, file))
			if err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64); err == nil { // else "max"
					least = min(least, n)
				}
			}
			if at == "/" {
				break
			}
		}
	}
	if least >= noMemoryLimit {
		return 0
	}
	return least
}
