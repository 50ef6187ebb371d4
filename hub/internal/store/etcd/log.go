package etcd

import (
	"context"
	"log/slog"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo is a logger for etcd that writes to log. etcd tells much: its Info is Debug here, and what it says over and over,
// as when it starts with more in its log than it takes in at once, is said a few times in a second.
func zapTo(log *slog.Logger) *zap.Logger {
	return zap.New(zapcore.NewSamplerWithOptions(&slogCore{log: log}, time.Second, sameInASecond, 0))
}

const sameInASecond = 3

type slogCore struct {
	log *slog.Logger
}

// usual are complaints that a single member without listeners always has when it is made.
var usual = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return c.log.Enabled(context.Background(), level(l))
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: c.log.With(attributes(fields)...)}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) || usual[e.Message] {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), level(e.Level), "etcd: "+e.Message, attributes(fields)...)
	return nil
}

func (c *slogCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	out := make([]any, 0, 2*len(fields))
	for _, f := range fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		if v, ok := enc.Fields[f.Key]; ok {
			out = append(out, f.Key, v)
		}
	}
	return out
}
