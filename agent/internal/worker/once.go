package worker

import (
	"context"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// gone takes note of how an object had ended when it was deleted.
func (m *Manager) gone(id fleet.ObjectID, uid string, o plan.Outcome) {
	if r := m.inventory.Get(id); r != nil {
		m.inventory.Amend(r.Module, id, func(r *apply.Record) bool { return r.Gone(uid, o) })
	}
}

// noteEnd takes note of what a live object says of its end.
func (w *worker) noteEnd(rec *apply.Record, f *watch.Fingerprint) {
	if rec.Outcome == plan.Interrupted && f.Outcome == plan.Running && !f.Terminating {
		w.m.inventory.Amend(w.ref, rec.ID, func(r *apply.Record) bool { return r.Back(f.UID) })
	}
	if f.Outcome != plan.Running && rec.Outcome != f.Outcome && rec.Module == w.ref {
		w.m.inventory.Amend(w.ref, rec.ID, func(r *apply.Record) bool { return r.End(f.UID, f.Outcome) })
	}
}

// inquire asks the cluster's Events how an object ended that went while nobody looked. Without any it is not made again:
// what ran once does more harm by running twice than by waiting for a person.
func (a *writer) inquire(ctx context.Context) error {
	r := a.w.m.inventory.Get(a.id)
	if r == nil || !r.Unseen() {
		return nil
	}
	uid, fleeting, o := r.UID, r.Fleeting, plan.Running
	if err := a.lookForEvents(ctx, func() (told bool, err error) {
		reasons, err := a.w.m.client.EventReasons(ctx, a.namespace, uid)
		o = plan.OutcomeOfEvents(reasons)
		return o.Told(), unlessRefused(err, !fleeting)
	}); err != nil {
		return err
	}
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool { return r.End(uid, r.Ended(o)) })
	return nil
}

// lookForEvents looks until something is told, or for as long as Events may be late: they are written a little later than what they
// tell of.
func (a *writer) lookForEvents(ctx context.Context, look func() (told bool, err error)) error {
	for deadline := time.Now().Add(a.w.m.eventsLag); ; {
		if told, err := look(); told || err != nil || time.Now().After(deadline) {
			return err
		}
		if err := backoff.Wait(ctx, eventsPoll); err != nil {
			return err
		}
	}
}

// unlessRefused is the error of a look for Events. Without the right to read them nothing tells, where that may be; but an API server that has
// just started refuses them, too, so that a refusal ends no look before its time.
func unlessRefused(err error, may bool) error {
	if may && kube.Is(err, kube.Forbidden) {
		return nil
	}
	return err
}

// attempted finds out whether what is to be made ran to its end, and was taken away, after an attempt to make it whose answer was
// lost: nobody knows the UID of that. The first attempt is noted durably.
func (a *writer) attempted(ctx context.Context) (ran bool, err error) {
	obj, err := a.desired.Object()
	if err != nil || !plan.Fleeting(obj) {
		return false, err
	}
	r := a.w.m.inventory.Get(a.id)
	if r == nil {
		return false, nil
	}
	if a.first = r.Trying == nil || !a.desired.Is(r.Trying.Content); a.first {
		a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
			r.Trying = &apply.Trying{Content: a.desired.Content, Since: a.w.m.clock.Now().Unix()}
			return true
		})
		return false, a.w.m.inventory.Sync(ctx)
	}
	err = a.lookForEvents(ctx, func() (told bool, err error) {
		events, err := a.w.m.client.EventsOf(ctx, a.namespace, a.id.Kind, a.id.Name)
		uid, o := plan.Attempt(events, r.Trying.Since, r.UID)
		if ran = err == nil && uid != ""; ran {
			a.noteRan(uid, o)
		}
		return ran, unlessRefused(err, true)
	})
	return ran, err
}

// noteRan notes of what was made without an answer that it ran.
func (a *writer) noteRan(uid string, o plan.Outcome) {
	a.w.log.Info("object ran by an attempt that had no answer", "object", a.id.String(), "uid", uid, "outcome", o.String())
	r := a.written(map[string]any{"metadata": map[string]any{"uid": uid}}, nil, apply.Values{Replicas: -1})
	r.Fleeting, r.Outcome = true, o
	a.w.noteRecord(r)
}

// answered notes that no attempt is under way any more: the API server refused the first one, be it for an object of that name, which
// is then not what was tried. Of an earlier one that had no answer the refusal of a later one says nothing.
func (a *writer) answered(refused error) {
	if !a.first || refused == nil || a.unsure {
		return
	}
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		was := r.Trying
		r.Trying = nil
		return was != nil
	})
}

// How long Events may be late, and how often to look for them.
const (
	eventsLag  = 5 * time.Second
	eventsPoll = 250 * time.Millisecond
)

// ran reports that an object which is not there is done, and notes that.
func (a *writer) ran(ctx context.Context) (bool, error) {
	if a.record == nil || a.print != nil && a.print.Made {
		return false, nil
	}
	if !a.desired.Is(a.record.Content) && !a.exempt.KeepsWhole() {
		return false, nil
	}
	if err := a.inquire(ctx); err != nil {
		return false, err
	}
	return a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		r.Want, r.Generation = a.want, a.sync.Generation
		return a.isDone(r)
	}), nil
}

// isDone reports that an object which is gone ran for the wanted content already. One that a revision is not to write again is done whatever is
// wanted now, unless it failed.
func (a *writer) isDone(r *apply.Record) bool {
	return r.Ran() && (a.desired.Is(r.Content) || a.exempt.KeepsWhole() && r.Outcome != plan.Failed)
}

// ranText is what is said of an object that ran and is gone. once says that a revision does not write it again.
func ranText(id fleet.ObjectID, o plan.Outcome, once bool) string {
	again := "it runs again when its content changes"
	if once && o != plan.Failed {
		again = "it does not run again (applyOnce)"
	}
	switch o {
	case plan.Failed:
		return id.String() + ": failed and was taken away; " + again
	case plan.OutcomeUnknown:
		return id.String() + ": went while the agent was away, and nothing tells whether it had run; " + again
	}
	return id.String() + ": ran to its end and was taken away; " + again
}

// ranHealth is the health of an object that ran and is gone.
func ranHealth(o plan.Outcome) fleet.Health {
	switch o {
	case plan.Completed:
		return fleet.HealthHealthy
	case plan.Failed:
		return fleet.HealthDegraded
	}
	return fleet.HealthUnknown
}
