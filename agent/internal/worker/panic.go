package worker

import (
	"context"
	"log/slog"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

// attempt makes a pass. A bug that it runs into stops this module alone: what sets it off is stored, so that an agent which
// ended with it would end at each start. The module begins anew after a while, or at once with a newer word of the hub.
func (w *worker) attempt(ctx context.Context) (wake time.Time) {
	if time.Now().Before(w.rest) && !w.superseded() {
		return w.rest
	}
	err := w.guarded(func() error {
		wake = w.pass(ctx)
		return nil
	})
	if err == nil {
		w.falls, w.rest = 0, time.Time{}
		return earliest(wake, w.ends.wake(w.m.clock.Now()))
	}
	w.falls++
	w.rest = time.Now().Add(min(time.Second<<min(w.falls, 5), maxLoadRetry))
	w.startOver(&apply.Failure{Reason: apply.ReasonBug, Message: err.Error()})
	return w.rest
}

// startOver trusts nothing that a pass has left behind which did not come to its end. What the module lists is read again,
// and until it is, nothing goes.
func (w *worker) startOver(f *apply.Failure) {
	w.busy, w.status.at = false, time.Time{}
	w.pruning = pruneState{touched: true, failed: f}
	w.doomed.Store(nil)
	if w.cur.kind == targetSync || w.cur.kind == targetStray {
		w.loadError, w.loadRetry = f, w.rest
	}
	_ = w.guarded(func() error {
		w.report(time.Now())
		return nil
	})
}

// guarded runs a part of the work. A panic in it is logged with its stack, and is an error.
func (w *worker) guarded(part func() error) error {
	return guarded(w.log, part)
}

func guarded(log *slog.Logger, part func() error) error {
	err := guard.Run(part)
	if stack := guard.Stack(err); stack != "" {
		log.Error("a worker panicked; it will be tried again", "stack", stack)
	}
	return guard.Bug(err, "stopped by a bug in the agent; its log has the details")
}

// about is guarded for a part that is about one object.
func (w *worker) about(id fleet.ObjectID, part func() error) error {
	err := w.guarded(part)
	if guard.Stack(err) != "" {
		return &apply.Failure{Reason: apply.ReasonBug, Transient: true, Kind: err, Message: id.String() + ": " + err.Error()}
	}
	return err
}
