package etcd

import (
	"context"
	"io/fs"
	"log/slog"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo is a logger for etcd that writes to log. etcd tells much: its Info is Debug here, its Debug is left out, and what it says over and over,
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

// Enabled leaves out what etcd calls debugging: it has requests whole, with all that people store.
func (c *slogCore) Enabled(l zapcore.Level) bool {
	return l > zapcore.DebugLevel && c.log.Enabled(context.Background(), level(l))
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
	c.log.Log(context.Background(), level(e.Level), "etcd: "+mended(e.Message), attributes(fields)...)
	if e.Level >= zapcore.FatalLevel {
		c.log.Error("the hub ends, for etcd cannot go on: look whether the disk of --data-dir is full or read-only, and start the hub again. What was acknowledged is kept")
	}
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

// misprinted is what the database below etcd writes of an error, for it prints as others wrap: %!w(*fs.PathError=&{write /path 28}).
var misprinted = regexp.MustCompile(`%!w\(\*fs\.PathError=&\{(\S+) (\S+) (?:0x)?([0-9a-f]+)\}\)`)

// mended is a message with its error in words.
func mended(message string) string {
	return misprinted.ReplaceAllStringFunc(message, func(s string) string {
		m := misprinted.FindStringSubmatch(s)
		n, err := strconv.ParseUint(m[3], 10, 16)
		if err != nil {
			return m[1] + " " + m[2] + ": " + m[3]
		}
		return (&fs.PathError{Op: m[1], Path: m[2], Err: syscall.Errno(n)}).Error()
	})
}
