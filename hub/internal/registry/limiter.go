package registry

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	failureEvery  = time.Second
	failureBurst  = 10
	failureOrigin = 10_000 // origins remembered at once
)

// limiter bounds the failed attempts of an origin. Honest agents behind the same address are let through until it has
// used up its failures.
type limiter struct {
	mu sync.Mutex
	m  map[netip.Prefix]*rate.Limiter
}

func newLimiter() *limiter { return &limiter{m: map[netip.Prefix]*rate.Limiter{}} }

// allowed reports whether the origin may try.
func (l *limiter) allowed(remote string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.m[origin(remote)]
	return !ok || b.TokensAt(now) >= 1
}

// failed counts a failure of the origin.
func (l *limiter) failed(remote string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := origin(remote)
	b, ok := l.m[o]
	if !ok {
		if len(l.m) >= failureOrigin {
			l.forget(now)
		}
		b = rate.NewLimiter(rate.Every(failureEvery), failureBurst)
		l.m[o] = b
	}
	b.AllowN(now, 1)
}

// forget drops the origins that have recovered, or all if none has.
func (l *limiter) forget(now time.Time) {
	for o, b := range l.m {
		if b.TokensAt(now) >= failureBurst {
			delete(l.m, o)
		}
	}
	if len(l.m) >= failureOrigin {
		clear(l.m)
	}
}

// origin is an IPv4 address or an IPv6 /64; the zero Prefix for what is neither, such as a test's pipe.
func origin(remote string) netip.Prefix {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	bits := 64
	if a = a.Unmap().WithZone(""); a.Is4() {
		bits = 32
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
