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
	retryTakenEach   = 200 * time.Millisecond
)

// Retry is what failed: how long it rests follows from that.
type Retry struct {
	Transient bool // it may go away by itself
	Denied    bool // a right, a quota or admission stands against it
	Taken     bool // somebody else has the object, or a field of it
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
		first, most = firstRetryDenied, r.maxSteady(retryDeniedEach)
	}
	if r.Taken {
		most = r.maxSteady(retryTakenEach)
	}
	wait := min(first<<min(r.Tries, 16), most)
	return wait - wait/4 + time.Duration(jitter*float64(wait/2))
}

// maxSteady is how long to wait at most before what others stand against is tried again. No event tells of a right that is given, or
// of an object of somebody else that is deleted, and whoever did that waits. Each try costs something, though: one that is forbidden
// stands in the audit log, and an object that somebody else has is read and compared. A module of very many objects takes longer.
func (r Retry) maxSteady(each time.Duration) time.Duration {
	return min(max(maxRetryDenied, time.Duration(r.Objects)*each), maxRetrySteady)
}
