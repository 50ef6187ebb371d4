package hook

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How often one address may call.
const (
	callsPerSecond = 10
	callsAtOnce    = 100
	maxCallers     = 4096 // that are told apart
)

// limiter keeps each caller to its rate. The zero limiter is ready.
type limiter struct {
	mu      sync.Mutex
	of      map[string]*rate.Limiter
	overall *rate.Limiter // of those for whom there is no room
}

// allow reports that a caller may call now.
func (l *limiter) allow(caller string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of, l.overall = map[string]*rate.Limiter{}, rate.NewLimiter(callsPerSecond, callsAtOnce)
	}
	of := l.of[caller]
	if of == nil {
		if len(l.of) >= maxCallers {
			l.forget(now)
		}
		if len(l.of) >= maxCallers {
			return l.overall.AllowN(now, 1)
		}
		of = rate.NewLimiter(callsPerSecond, callsAtOnce)
		l.of[caller] = of
	}
	return of.AllowN(now, 1)
}

// forget drops those who have been quiet: to them nothing is owed.
func (l *limiter) forget(now time.Time) {
	for caller, of := range l.of {
		if of.TokensAt(now) >= callsAtOnce {
			delete(l.of, caller)
		}
	}
}
