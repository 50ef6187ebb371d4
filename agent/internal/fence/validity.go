package fence

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"towline.dev/towline/pkg/fleet"
)

// covered is how long a renewal of the Lease covers writes: less than others respect it for, because a request that was
// sent takes its time to arrive.
func (f *Fence) covered() time.Duration { return f.o.Duration * 2 / 3 }

// Check says why a request that was let through by Open must not be sent any more; nil: it may. It costs no request, so
// it can be asked right before each one.
func (f *Fence) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		return f.notHeld()
	}
	if age := f.age(); age >= f.covered() {
		return f.expired(age)
	}
	return nil
}

// Covered is a context that ends when the Lease does not cover writes any more: another process took it, or it was not
// renewed in time.
func (f *Fence) Covered() context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.valid
}

func (f *Fence) expired(age time.Duration) error {
	return fleet.Errorf(fleet.ErrStale, "lease %s was renewed %s ago and may be another's by now: nothing is written until it is renewed", f.name(), age.Round(time.Millisecond))
}

// swapped takes the answer to a swap. A Lease that does not say what was sent is nobody's: others may take it at any time.
func (f *Fence) swapped(sent, got *coordinationv1.Lease, began Moment) error {
	if err := f.kept(sent, got); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.held != nil {
			f.drop(err)
		}
		return err
	}
	f.renewed(got, began)
	return nil
}

// kept says what of a Lease that was sent is not in the answer; nil: all by which others tell whose it is, and we what was noted on it.
func (f *Fence) kept(sent, got *coordinationv1.Lease) error {
	changed := ""
	if key := fleet.ChangedMark(sent.Annotations, got.Annotations); key != "" {
		changed = "annotation " + key
	} else if holder(got) != holder(sent) {
		changed = "its holder"
	} else {
		return nil
	}
	return fleet.Errorf(fleet.ErrStale, "lease %s: %s is not kept as it was written: an admission policy or webhook of the cluster changes it; exempt namespace %s from it. Nothing is written meanwhile",
		f.name(), changed, f.o.Namespace)
}

// renewed notes a swap that succeeded. A Lease that was dropped meanwhile stays dropped.
func (f *Fence) renewed(lease *coordinationv1.Lease, began Moment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		return
	}
	f.held, f.batch, f.opened, f.began, f.writes = lease, f.batch+1, began, f.o.Clock(), 0
	f.extend()
}

// extend has writes covered for a while from the last renewal. The caller holds mu.
func (f *Fence) extend() {
	left := f.covered() - f.age()
	if left <= 0 {
		f.lapse(f.expired(f.age()))
		return
	}
	if f.valid.Err() != nil {
		f.valid, f.lapse = context.WithCancelCause(context.Background())
	}
	if f.expiry == nil {
		f.expiry = time.AfterFunc(left, f.expire)
		return
	}
	f.expiry.Reset(left)
}

// expire ends the writes under way when the Lease was not renewed in time.
func (f *Fence) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		return
	}
	if age := f.age(); age >= f.covered() {
		f.lapse(f.expired(age))
		return
	}
	f.expiry.Reset(f.covered() - f.age())
}
