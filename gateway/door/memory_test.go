package door

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestTheLeastMemoryLimitOfTheEnvironmentHolds(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, c := range map[string]struct {
		files   fstest.MapFS
		goLimit int64
		want    int64
	}{
		"nothing":    {fstest.MapFS{}, math.MaxInt64, 0},
		"GOMEMLIMIT": {fstest.MapFS{}, 1 << 30, 1 << 30},
		"v2": {fstest.MapFS{
			"proc/self/cgroup": file("0::/a.slice/b.scope\n"), "sys/fs/cgroup/a.slice/b.scope/memory.max": file("max\n"),
			"sys/fs/cgroup/a.slice/memory.max": file("536870912\n"),
		}, 1 << 30, 512 << 20},
		"v2 in a container": {fstest.MapFS{
			"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("268435456\n"),
		}, math.MaxInt64, 256 << 20},
		"v1, unlimited": {fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/x\n4:memory:/x\n"), "sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, math.MaxInt64, 0},
		"v1, a path of the host": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/docker/1\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("104857600\n"),
		}, math.MaxInt64, 100 << 20},
	} {
		if got := environmentLimit(c.files, c.goLimit); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestMemoryBoundsConnsByWhatTheyCost(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		limit, inUse, base int64
		conns, want        int
	}{
		{100 * mib, 20 * mib, 20 * mib, 0, 40 * mib / leastConnBytes},                             // nothing measured
		{100 * mib, 40 * mib, 20 * mib, 1_000, 1_000 + 20*mib/(20*mib/1_000)},                     // 20 KiB each
		{100 * mib, 21 * mib, 20 * mib, 1_000, 1_000 + 39*mib/leastConnBytes},                     // cheaper than can be
		{100 * mib, 80 * mib, 20 * mib, 1_000, 1_000},                                             // over: those who are there stay
		{1 * mib, 20 * mib, 20 * mib, 0, 1},                                                       // never nothing at all
		{100 * mib, 20*mib + 100*64<<10, 20 * mib, 100, 100 + (40*mib-100*64<<10)/leastConnBytes}, // too few to measure
	} {
		if got := memoryRoom(c.limit, c.inUse, c.base, leastConnBytes, c.conns); got < c.want-1 || got > c.want+1 {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
