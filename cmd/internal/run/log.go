package run

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/mattn/go-isatty"
)

// NewLog logs to a file, as text on a terminal and as JSON elsewhere.
func NewLog(to *os.File, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, Usagef("log level %q: must be debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l, ReplaceAttr: readable}
	if Terminal(to) {
		return slog.New(slog.NewTextHandler(to, options)), nil
	}
	return slog.New(slog.NewJSONHandler(to, options)), nil
}

// readable writes durations as "3s", where JSON would have nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Terminal says whether somebody is looking.
func Terminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

// Version of this build: the module's, or the commit that it was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	version := info.Main.Version
	if version == "" || version == "(devel)" {
		version = "devel"
		if rev := settings["vcs.revision"]; len(rev) >= 12 {
			version = fmt.Sprintf("devel-%s", rev[:12])
		}
		if settings["vcs.modified"] == "true" {
			version += "+changes"
		}
	}
	return version
}

// GoVersion that this build was made with.
func GoVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "unknown"
}
