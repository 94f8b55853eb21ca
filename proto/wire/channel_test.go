package wire

import (
	"strings"
	"testing"
)

func TestChannelNames(t *testing.T) {
	good := []string{"a", "chat:room-7", "a*b", "a>b", "a.b", "with space", "ключ", strings.Repeat("x", 255), "\uFFFD", ":", "%2E"}
	for _, name := range good {
		if err := CheckChannel(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	bad := []string{"", strings.Repeat("x", 256), "a\nb", "a\r", "\x00", "a\x7f", "a\u0085", "\xff", "a\xc3", "\xed\xa0\x80"}
	for _, name := range bad {
		if CheckChannel(name) == nil {
			t.Errorf("%q passed", name)
		}
	}
}

func TestSubjectsAreSafeAndDistinct(t *testing.T) {
	want := map[string]string{
		"chat:room-7": "sw.ch.chat:room-7",
		"a.*>b c":     "sw.ch.a%2E%2A%3Eb%20c",
		"a%2E":        "sw.ch.a%252E",
		"$SYS":        "sw.ch.%24SYS",
	}
	for channel, subject := range want {
		if got := Subject("sw", channel); got != subject {
			t.Errorf("%q: %s, want %s", channel, got, subject)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("chat:a", "chat.a")
	f.Add("%2E", ".")
	f.Fuzz(func(t *testing.T, a, b string) {
		if CheckChannel(a) != nil || CheckChannel(b) != nil {
			return
		}
		sa, sb := Subject("p", a), Subject("p", b)
		if (a == b) != (sa == sb) {
			t.Fatalf("%q and %q: %s and %s", a, b, sa, sb)
		}
		if rest := strings.TrimPrefix(sa, "p.ch."); rest == "" || strings.ContainsAny(rest, ".*> \t\r\n") {
			t.Fatalf("%q: unsafe subject %q", a, sa)
		}
	})
}

func TestEpochs(t *testing.T) {
	for _, e := range []uint64{1, 35, 36, 1 << 60} {
		if got, ok := ParseEpoch(FormatEpoch(e)); !ok || got != e {
			t.Errorf("%d came back as %d, %v", e, got, ok)
		}
	}
	for _, s := range []string{"", "0", "A", "01", "-1", "x y", strings.Repeat("z", 30)} {
		if _, ok := ParseEpoch(s); ok {
			t.Errorf("%q is no epoch of ours", s)
		}
	}
}
