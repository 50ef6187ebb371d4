package control

import (
	"errors"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

const (
	// maxAway is how long the rollout of a put waits for the server of its source. What runs stays as it is meanwhile; that nobody looks
	// for a day says that nobody is going to.
	maxAway = 24 * time.Hour
	// awayRetry is the least time between two tries: the source has made some of its own in each.
	awayRetry = time.Second
)

// isAway reports that the server of a source does not answer.
func isAway(err error) bool { return errors.As(err, new(*source.AwayError)) }

// whileAway has the rollout of a put wait for a server that is away, and fail when it has been for too long. A hub that begins to lead
// counts anew.
func (c *Controller) whileAway(ref fleet.ModuleRef, number int64, rec *storev1.ModuleRecord, err error, now time.Time) (*resolved, error) {
	var away *source.AwayError
	if !errors.As(err, &away) {
		return nil, err
	}
	since := c.state(ref).awaySince(number, now)
	if now.Sub(since) < maxAway {
		return nil, &source.AwayError{Host: away.Host, Since: since, Err: away.Err}
	}
	return &resolved{put: rec, failed: &rollout.SourceFailed{Reason: "SourceFailed", Message: err.Error()}}, nil
}

// awaySince is when the source of a rollout was not reached for the first time.
func (s *moduleState) awaySince(number int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away.number != number {
		s.away.number, s.away.since = number, now
	}
	return s.away.since
}
