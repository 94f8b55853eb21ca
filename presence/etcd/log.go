package etcd

import (
	"context"
	"log/slog"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger gives what clientv3 logs to slog, at Debug: it warns about every
// failed try, and what matters of that Registry says itself.
func zapLogger(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(slogCore{log: log})
}

// slogCore is a zapcore.Core over slog.
type slogCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (c slogCore) Enabled(zapcore.Level) bool {
	return c.log.Enabled(context.Background(), slog.LevelDebug)
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.log, append(slices.Clip(c.fields), fields...)}
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range append(slices.Clip(c.fields), fields...) {
		f.AddTo(m)
	}
	attrs := []any{"level_of_etcd", e.Level.String()}
	for k, v := range m.Fields {
		attrs = append(attrs, k, v)
	}
	c.log.Debug("etcd client: "+e.Message, attrs...)
	return nil
}

func (slogCore) Sync() error { return nil }
