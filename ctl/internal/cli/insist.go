package cli

import (
	"context"
	"errors"
	"time"

	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

const (
	// maxInsist is for how long a command asks again where it finds no hub: one that starts anew is there in seconds, and the modules of a
	// batch wait 30 for the rest. putPause is between two tries.
	maxInsist = 18 * time.Second
	putPause  = 300 * time.Millisecond
	// insistPause is between two tries of insist, of which each has tries of its own.
	insistPause = time.Second
)

// insistence is for how long what a command does finds no hub.
type insistence struct {
	passes func(error) bool // the error is over in a moment
	until  time.Time        // when to give up; zero: the hub was there the last time
}

// insisted asks again until a hub answers, or it has not for too long. again: it was asked more than once, so that something may be done of which
// the answer was lost.
func insisted[T any](ctx context.Context, a *app, x *insistence, ask func() (T, error)) (resp T, again bool, err error) {
	for {
		resp, err = ask()
		if err == nil {
			x.until = time.Time{} // its next absence is another one
		}
		if err == nil || !x.passes(err) {
			return resp, again, err
		}
		if x.until.IsZero() {
			x.until = time.Now().Add(maxInsist)
		}
		if time.Now().After(x.until) {
			return resp, again, err
		}
		a.onBreak(err)
		if backoff.Wait(ctx, putPause) != nil {
			return resp, again, err
		}
		again = true
	}
}

// passes reports that a hub was not there, or does not lead, which is over in a moment: not that something else cannot be reached, as a source.
func passes(err error) bool {
	return errors.Is(err, fleet.ErrUnavailable) && (rpc.Unanswered(err) || fleet.HintOf(err).RetryAfter > 0)
}

// undecided reports that nobody has said what became of a request: it may have been done.
func undecided(err error) bool {
	return errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// insist asks until the hub, which is there, answers: that it starts anew is not the rollout's result.
func (a *app) insist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !errors.Is(err, fleet.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		a.onBreak(err)
		if waited := backoff.Wait(ctx, insistPause); waited != nil {
			return err
		}
	}
}
