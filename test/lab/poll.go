package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollPeriod is how often Poll looks.
const pollPeriod = 50 * time.Millisecond

// Poll calls f until it returns nil, a Final error, or ctx is done; the last error says what was missing.
func Poll(ctx context.Context, f func() error) error {
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := f()
		var last *finalError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &last):
			return last.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// PollFor is Poll with a limit on the time.
func PollFor(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return Poll(ctx, f)
}

// Stays calls f for the whole time; the first error ends it.
func Stays(ctx context.Context, limit time.Duration, f func() error) error {
	enough := time.NewTimer(limit)
	defer enough.Stop()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		if err := f(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-enough.C:
			return f()
		case <-ticker.C:
		}
	}
}

type finalError struct{ error }

// Final marks an error that no later look will mend.
func Final(err error) error { return &finalError{err} }
