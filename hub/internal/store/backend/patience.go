package backend

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

// IsOpen reports that it is not known whether what failed has happened.
func IsOpen(err error) bool { return errors.Is(err, fleet.ErrUnavailable) }

// Open marks an error after which it is not known whether what failed has happened; nil stays nil.
func Open(err error) error {
	if err == nil {
		return nil
	}
	return &openError{err}
}

// openError is an ErrUnavailable that keeps its cause.
type openError struct{ cause error }

func (e *openError) Error() string   { return "store: " + e.cause.Error() }
func (e *openError) Unwrap() []error { return []error{fleet.ErrUnavailable, e.cause} }

// Closed is the error of a store that is closed.
func Closed() error { return fleet.Errorf(fleet.ErrUnavailable, "store is closed") }

// NewRetry is how long to wait before each repetition.
func NewRetry() *backoff.Backoff {
	return backoff.New(backoff.Policy{Min: 2 * time.Millisecond, Max: time.Second, Jitter: 1}, rand.Float64)
}

// Pause waits between two tries. It fails when ctx ends, or life, which is the context that ends with the store.
func Pause(ctx, life context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-life.Done():
		return Closed()
	case <-ctx.Done():
		return Open(ctx.Err())
	case <-t.C:
		return nil
	}
}

// Insist repeats what may be repeated while the backend is unavailable.
func Insist(ctx, life context.Context, try func() error) error {
	retry := NewRetry()
	for {
		err := try()
		if !IsOpen(err) {
			return err
		}
		if Pause(ctx, life, retry.Next()) != nil {
			return err
		}
	}
}

// ListPage is how many keys one page of a long list holds.
const ListPage = 2000

// RangeAll reads all pages at the revision of the first.
func RangeAll(ctx context.Context, b Backend, q RangeQuery) ([]KV, int64, error) {
	var all []KV
	for restarts := 0; ; {
		page, err := b.Range(ctx, q)
		if errors.Is(err, ErrCompacted) && restarts < 3 {
			restarts++
			all, q.After, q.Revision = nil, "", 0
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		all = append(all, page.KVs...)
		if !page.More || len(page.KVs) == 0 {
			return all, page.Revision, nil
		}
		q.After, q.Revision = page.KVs[len(page.KVs)-1].Key, page.Revision
	}
}
