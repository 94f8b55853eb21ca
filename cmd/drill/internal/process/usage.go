package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU is the user and system time of the newest run, by proc(5): fields 14 and 15 of
// stat, in ticks of 10 ms. It is 0 once the process has ended.
func (p *Process) CPU() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Resident is the memory of the newest run, in bytes, now and at its highest since it
// began or since ForgetPeak. Both are 0 once the process has ended.
func (p *Process) Resident() (now, peak int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), " kB")), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	return now, peak
}

// ForgetPeak lets the peak of Resident begin anew.
func (p *Process) ForgetPeak() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0)
}
