// Package backoff says how long to wait before the next try: exponential growth between two bounds, with jitter. It owns
// the arithmetic, and the wait itself; it must not know what is tried, and takes no randomness by itself.
package backoff

import "time"

// Policy is how waits grow. The zero Policy waits from 100 ms to 30 s, doubling, each shortened by up to half.
type Policy struct {
	Min    time.Duration // the first wait; default 100 ms
	Max    time.Duration // no wait is longer; default 30 s, and at least Min
	Factor float64       // growth from one wait to the next; default 2, at least 1
	Jitter float64       // the share of a wait that chance may take off, in 0..1; default 0.5, negative: none
}

const (
	defaultMin    = 100 * time.Millisecond
	defaultMax    = 30 * time.Second
	defaultFactor = 2
	defaultJitter = 0.5
)

// Next returns the base that follows a base (0: the first one) and the wait for it: the base less jitter. random is a
// number in [0, 1).
func (p Policy) Next(base time.Duration, random float64) (next, wait time.Duration) {
	p = p.filled()
	next = p.Min
	if base > 0 {
		next = p.grow(base)
	}
	return next, next - time.Duration(float64(next)*p.Jitter*random)
}

func (p Policy) grow(base time.Duration) time.Duration {
	grown := float64(base) * p.Factor
	if grown >= float64(p.Max) {
		return p.Max
	}
	return max(time.Duration(grown), p.Min)
}

func (p Policy) filled() Policy {
	if p.Min <= 0 {
		p.Min = defaultMin
	}
	if p.Max <= 0 {
		p.Max = defaultMax
	}
	p.Max = max(p.Max, p.Min)
	if p.Factor < 1 {
		p.Factor = defaultFactor
	}
	if p.Jitter == 0 {
		p.Jitter = defaultJitter
	}
	p.Jitter = min(max(p.Jitter, 0), 1)
	return p
}

// Backoff is a Policy with a memory of the last wait. It is not safe for concurrent use.
type Backoff struct {
	policy Policy
	random func() float64
	base   time.Duration
}

// New makes a Backoff; random gives numbers in [0, 1), such as rand.Float64.
func New(p Policy, random func() float64) *Backoff { return &Backoff{policy: p, random: random} }

// Next is the wait before the next try.
func (b *Backoff) Next() time.Duration {
	var wait time.Duration
	b.base, wait = b.policy.Next(b.base, b.random())
	return wait
}

// Reset starts over: call it after a success.
func (b *Backoff) Reset() { b.base = 0 }
