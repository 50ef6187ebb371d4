package plan

import "time"

// Back-off per object.
const (
	firstRetry       = 200 * time.Millisecond
	maxRetry         = 30 * time.Second
	firstRetrySteady = 5 * time.Second
	maxRetrySteady   = 5 * time.Minute
	firstRetryDenied = time.Second
	maxRetryDenied   = 20 * time.Second
	retryDeniedEach  = 10 * time.Millisecond
)

// Retry is what failed: how long it rests follows from that.
type Retry struct {
	Transient bool // it may go away by itself
	Denied    bool // a right, a quota or admission stands against it
	Objects   int  // of the module
	Tries     int  // before this one
}

// Wait is how long to wait before the next try, within a quarter of it by jitter, which is in [0, 1).
func (r Retry) Wait(jitter float64) time.Duration {
	first, most := firstRetry, maxRetry
	if !r.Transient {
		first, most = firstRetrySteady, maxRetrySteady
	}
	if r.Denied {
		first, most = firstRetryDenied, r.maxDenied()
	}
	wait := min(first<<min(r.Tries, 16), most)
	return wait - wait/4 + time.Duration(jitter*float64(wait/2))
}

// maxDenied is how long to wait at most before what the API server forbade is tried again: nothing tells of a right that is
// given, and whoever gave it waits. A request that is forbidden costs the API server little, but each stands in its audit
// log, so that a module of very many objects takes longer.
func (r Retry) maxDenied() time.Duration {
	return min(max(maxRetryDenied, time.Duration(r.Objects)*retryDeniedEach), maxRetrySteady)
}
