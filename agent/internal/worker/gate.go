package worker

import (
	"cmp"
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// maxBusy is how often a server that asks to come again later is asked again, and maxBusyWait the longest wait between.
const (
	maxBusy     = 10
	maxBusyWait = 10 * time.Second
)

// write makes one request that changes the cluster, behind the gate and the fence. A server that is busy is asked again
// when it says so, and so are the gate and the fence: the right to write may have ended meanwhile.
func (m *Manager) write(ctx context.Context, request func(context.Context) error) error {
	return m.repeat(ctx, false, request)
}

// finish is write of what brings a deleted object back: what the cluster accepts by then, and when, must not leave it away.
func (m *Manager) finish(ctx context.Context, request func(context.Context) error) error {
	return m.repeat(ctx, true, request)
}

// repeat sends a request, again if the server asks for that, as long as nothing forbids it.
func (m *Manager) repeat(ctx context.Context, finishing bool, request func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := m.writeOnce(ctx, finishing, request)
		wait, again := apply.RetryAfter(err)
		if !again || attempt == maxBusy {
			return err
		}
		if err := backoff.Wait(ctx, min(wait, maxBusyWait)); err != nil {
			return err
		}
	}
}

// write makes one request for the module. A hold, and what the cluster does not accept, stop it up to the moment at which it is
// sent.
func (w *worker) write(ctx context.Context, x act, request func(context.Context) error) error {
	return w.m.write(ctx, func(ctx context.Context) error {
		if err := w.unlessStopped(x.id); err != nil {
			return err
		}
		done, err := w.m.permit(ctx, w.ref, x)
		if err != nil {
			return err
		}
		err = request(ctx)
		done(err)
		return err
	})
}

// writeDecided is write of what is decided by more than the object: what may go along with it may come while a busy API server is waited for. Its request
// is not made again, but is later then, once that has been waited for.
func (w *worker) writeDecided(ctx context.Context, x act, request func(context.Context) error) error {
	var busy error
	return w.write(ctx, x, func(ctx context.Context) error {
		if busy != nil {
			return later{busy}
		}
		err := request(ctx)
		if _, again := apply.RetryAfter(err); again {
			busy = err
		}
		return err
	})
}

// later is of a request that a busy API server did not take, and that is to be decided anew.
type later struct{ busy error }

func (l later) Error() string { return l.busy.Error() }

// takeAway deletes exactly the version of an object that was seen. It is called within a write: since that was let through the count for the
// delete budget was noted, and more may have been looked at, so that what may stop it is asked once more.
func (w *worker) takeAway(ctx context.Context, x act, res apply.Resource, live metav1.Object) error {
	if err := cmp.Or(w.unlessSuperseded(), w.unlessStopped(x.id), w.m.unlessDenied(w.ref, x)); err != nil {
		return err
	}
	sent := time.Now()
	err := w.m.client.Delete(ctx, res, x.id.Namespace, live)
	if apply.MayLand(err) {
		w.m.late.takes(x.id, sent, time.Now())
	}
	return err
}

// unlessStopped is an error where a hold stops a write to an object.
func (w *worker) unlessStopped(id fleet.ObjectID) error {
	if why := w.stops(id); why != "" {
		return &apply.Failure{Reason: plan.ReasonHeld, Message: why, Transient: true, Kind: errHeld}
	}
	return nil
}

// unlessSuperseded is an error where a newer target waits.
func (w *worker) unlessSuperseded() error {
	if w.superseded() {
		return errSuperseded
	}
	return nil
}

// stops says why by the newest word nothing may be written to an object; empty: it may.
func (w *worker) stops(id fleet.ObjectID) string {
	if w.onHold.Load() {
		return heldText
	}
	if held := w.objects.Load(); held != nil && assemble.Holds(*held, id) {
		return heldText
	}
	return w.heldThere(id)
}

const heldText = "held: nothing is written until the hold ends"

var (
	// errHeld is of a write that a hold stopped before it was sent.
	errHeld = errors.New("held")
	// errSuperseded is of what would take something away, and was stopped by a newer target before it was sent: that one may want it.
	errSuperseded = errors.New("superseded")
)

func (m *Manager) writeOnce(ctx context.Context, finishing bool, request func(context.Context) error) error {
	writing, done, err := m.writing(ctx, finishing)
	if err != nil {
		return err
	}
	defer done()
	err = request(writing)
	if err != nil && ctx.Err() == nil && writing.Err() != nil {
		return context.Cause(writing)
	}
	return err
}

// writing opens a write: its context ends when writes are forbidden or the fence does not cover them any more, and each
// of its requests asks the fence once more.
func (m *Manager) writing(ctx context.Context, finishing bool) (context.Context, context.CancelFunc, error) {
	why, open := m.opening(ctx, finishing)
	if why != "" {
		return nil, nil, forbidden(why)
	}
	out, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(open, func() { cancel(forbidden(m.forbidden())) })
	done := func() { stop(); cancel(nil) }
	if m.o.Fence == nil {
		return out, done, nil
	}
	if err := m.o.Fence.Open(ctx); err != nil {
		done()
		return nil, nil, fenced(err)
	}
	covered := m.o.Fence.Covered()
	uncover := context.AfterFunc(covered, func() { cancel(fenced(context.Cause(covered))) })
	checked := apply.Checked(out, func() error {
		if err := m.o.Fence.Check(); err != nil {
			return fenced(err)
		}
		return nil
	})
	return checked, func() { uncover(); done() }, nil
}

// opening says why a write must not begin, and when it has to end.
func (m *Manager) opening(ctx context.Context, finishing bool) (why string, open context.Context) {
	if finishing {
		return m.lockedOut(), ctx
	}
	why = m.forbidden()
	m.mu.Lock()
	defer m.mu.Unlock()
	if why == "" && m.open.Err() != nil { // a window may have opened of which no timer has told: the clock was put forward
		m.reopen()
	}
	return why, m.open
}

// prove says why what was read before may not have been read from this cluster.
func (m *Manager) prove(ctx context.Context) error {
	if m.o.Fence == nil {
		return nil
	}
	if err := m.o.Fence.Prove(ctx); err != nil {
		return fenced(err)
	}
	return nil
}

// forbidden is a write that was stopped because nothing may be written.
func forbidden(why string) *apply.Failure {
	return &apply.Failure{Reason: "Frozen", Message: cmp.Or(why, "writes were forbidden"), Transient: true, Kind: fleet.ErrPrecondition}
}

// fenced is a write that was stopped because the right to it ended.
func fenced(err error) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonNotLeader, Message: err.Error(), Transient: true, Kind: fleet.ErrStale}
}
