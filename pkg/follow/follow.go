// Package follow decides when the source of a module is looked at again, and whether what was found begins a rollout. Every
// function is pure; it must not know how a source is fetched, nor what a rollout does.
package follow

import (
	"hash/fnv"
	"math"
	"strconv"
	"time"
)

// Limits of the interval.
const (
	DefaultInterval = 5 * time.Minute
	MinInterval     = 30 * time.Second
	MaxInterval     = 24 * time.Hour
)

const (
	// maxBackoff is how rarely a source is looked at that cannot be had, unless its interval is longer.
	maxBackoff = 15 * time.Minute
	// maxCatchUp is within which time all sources are looked at that were due while nobody looked.
	maxCatchUp = 5 * time.Minute
	// jitter is the share of a wait by which that is shorter or longer.
	jitter = 0.1
)

// Why a look came to nothing.
const (
	ReasonUnavailable = "Unavailable" // it may be there later
	ReasonNotFound    = "NotFound"
	ReasonDenied      = "Denied"
	ReasonNeedsSecret = "NeedsSecret"
	ReasonUnverified  = "Unverified" // it is not signed as the source wants it
	ReasonTooLarge    = "TooLarge"
	ReasonInvalid     = "Invalid" // it cannot be read or rendered
	ReasonRefused     = "Refused" // a rollout runs, whose onSupersede is Reject
	ReasonPaused      = "Paused"  // a person paused the rollout that runs
)

// OfServer reports a reason for which nothing was had from the source: what a module would do with it is not known by that.
func OfServer(reason string) bool {
	switch reason {
	case ReasonUnavailable, ReasonNotFound, ReasonDenied, ReasonNeedsSecret, ReasonUnverified:
		return true
	}
	return false
}

// Reasons of the condition of a module that follows its source, beside those.
const (
	ReasonFollows    = "Follows"
	ReasonRolledBack = "RolledBack" // the source has what was rolled back, or aborted
)

// Condition is its type.
const Condition = "Following"

// Plan is what a module says of its source.
type Plan struct {
	// Interval is the time between two looks.
	Interval time.Duration
	// Webhook is the secret that calls are signed with which ask for a look; empty: none are taken.
	Webhook string
}

// DefaultWebhook is the secret that is meant where none is named.
const DefaultWebhook = "webhook"

const (
	// settle is how long after a call a look is made: a push comes as several.
	settle = time.Second
	// apart is how far looks are apart that are asked for by calls.
	apart = 10 * time.Second
)

// Called is when a look is made after a call.
func Called(m Memory, now time.Time) time.Time {
	at := now.Add(settle)
	if next := m.Looked.Add(apart); next.After(at) && !m.Looked.After(now) {
		return next
	}
	return at
}

// CalledAgain is when a look is made again for a call whose look came to nothing, by what may pass: as long after as that has been so already.
func CalledAgain(m Memory, now time.Time) time.Time {
	failing := time.Duration(0)
	if !m.Failing.IsZero() {
		failing = now.Sub(m.Failing)
	}
	return now.Add(min(max(failing, apart), maxBackoff))
}

// MayPass reports a reason for which a source comes to nothing now, and may come to something though nobody changes what it says of it: the server or who
// publishes there is not ready yet, or what runs is in the way.
func MayPass(reason string) bool {
	return OfServer(reason) || reason == ReasonRefused || reason == ReasonPaused
}

// Memory is what is known of the looks at a source.
type Memory struct {
	// Looked is when the last one was, whatever came of it.
	Looked time.Time
	// Failing is since when they come to nothing; zero: the last one did not.
	Failing time.Time
}

// Next is when the source is looked at next. key is the module's, so that each has waits of its own; led is since when
// this hub looks at all: what was due before that is spread, and not looked at all at once.
func (p Plan) Next(m Memory, key string, led time.Time) time.Time {
	wait := p.wait(m)
	due := m.Looked.Add(wait + time.Duration(float64(wait)*jitter*(2*share(key, m.Looked)-1)))
	if due.Before(led) {
		return led.Add(time.Duration(float64(min(p.Interval, maxCatchUp)) * share(key, led)))
	}
	return due
}

// wait is as long as the source could not be had already, so that it doubles, and no shorter than the interval.
func (p Plan) wait(m Memory) time.Duration {
	if m.Failing.IsZero() {
		return p.Interval
	}
	return max(p.Interval, min(m.Looked.Sub(m.Failing), maxBackoff))
}

// share is a number from 0 to 1 that looks drawn, and is the same for the same key and time.
func share(key string, at time.Time) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key + " " + strconv.FormatInt(at.UnixNano(), 10)))
	x := h.Sum64() // its high bits differ little between times that do
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x) / math.MaxUint64
}

// Found is what a look found, beside what the module has.
type Found struct {
	// Same says that it renders to what the newest revision has.
	Same bool
	// Uncut says that what the module says now has no revision.
	Uncut bool
	// Stopped says that the newest rollout was rolled back, or failed before it had a revision.
	Stopped bool
	// Aborted says that a person ended the newest rollout before it had a revision, and that the source has nothing else since.
	Aborted bool
	// Planned says that the newest rollout was bound to a plan, which the source did not render to.
	Planned bool
	// Unbegun says that the newest rollout did not begin, because the rest of what it was put with never came.
	Unbegun bool
	// Paused says that a person paused the rollout that runs. What begins nevertheless is said, and waits.
	Paused bool
	// Person says that a person asked for the look.
	Person bool
}

// Begins reports that a rollout begins. What stopped is not begun again by itself: the source has what it stopped with.
func (f Found) Begins() bool {
	if f.Aborted || f.Planned || f.Unbegun {
		return f.Person
	}
	return f.Uncut || !f.Same || f.Stopped && f.Person
}
