package control

import (
	"errors"
	"fmt"
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
	// maxStopped is how often something is tried that is stopped in the middle, each time lastRetry after the last one: a machine may be overloaded
	// for some minutes.
	maxStopped = 5
)

// isAway reports that the server of a source does not answer.
func isAway(err error) bool { return errors.As(err, new(*source.AwayError)) }

// whileAway has the rollout of a put wait for a server that is away, and for what is stopped in the middle, and fail when it has been for too long, or
// too often. A hub that begins to lead counts anew.
func (c *Controller) whileAway(ref fleet.ModuleRef, number int64, rec *storev1.ModuleRecord, err error, now time.Time) (*resolved, error) {
	var away *source.AwayError
	switch {
	case errors.Is(err, fleet.ErrStopped):
		if err = c.state(ref).stoppedAgain(fmt.Sprint("rollout ", number), err); errors.Is(err, fleet.ErrStopped) {
			return nil, err
		}
	case errors.As(err, &away):
		since := c.state(ref).awaySince(number, now)
		if now.Sub(since) < maxAway {
			return nil, &source.AwayError{Host: away.Host, Since: since, Err: away.Err}
		}
	default:
		return nil, err
	}
	return &resolved{put: rec, failed: &rollout.SourceFailed{Reason: "SourceFailed", Message: err.Error()}}, nil
}

// stoppedAgain counts the tries of something that was stopped in the middle by err. The last one is an ErrExhausted, and what is tried after that is
// counted anew.
func (s *moduleState) stoppedAgain(what string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil {
		s.stopped = map[string]int{}
	}
	if s.stopped[what]++; s.stopped[what] < maxStopped {
		return err
	}
	delete(s.stopped, what)
	return fleet.Errorf(fleet.ErrExhausted, "%s; it was tried %d times", err, maxStopped)
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
