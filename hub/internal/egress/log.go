package egress

import (
	"fmt"
	"log/slog"
	"net/url"
)

// RetryLog is the logger of a client that tries again. All is said at debug level, since the outcome goes to somebody who
// knows what it means, and only what holds no secret is said.
type RetryLog struct {
	Log *slog.Logger
	// What begins each line.
	What string
	// Cause is what may be said of an error.
	Cause func(error) string
	// URL is what may be said of an address; nil: nothing.
	URL func(*url.URL) string
}

// Error logs.
func (l RetryLog) Error(msg string, kv ...any) { l.write(msg, kv) }

// Warn logs.
func (l RetryLog) Warn(msg string, kv ...any) { l.write(msg, kv) }

// Info logs.
func (l RetryLog) Info(msg string, kv ...any) { l.write(msg, kv) }

// Debug logs.
func (l RetryLog) Debug(msg string, kv ...any) { l.write(msg, kv) }

func (l RetryLog) write(msg string, kv []any) {
	var attrs []any
	for i := 0; i+1 < len(kv); i += 2 {
		switch key, value := kv[i], kv[i+1]; key {
		case "url":
			if u, err := url.Parse(fmt.Sprint(value)); err == nil && l.URL != nil {
				attrs = append(attrs, key, l.URL(u))
			}
		case "error":
			if err, ok := value.(error); ok {
				attrs = append(attrs, key, l.Cause(err))
			}
		case "timeout", "remaining", "method":
			attrs = append(attrs, key, value)
		}
	}
	l.Log.Debug(l.What+": "+msg, attrs...)
}
