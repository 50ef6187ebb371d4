package worker

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// unchanged reports that the module lists what it listed when the record was made, but for fields that a policy leaves as they are.
func (a *writer) unchanged() bool { return lists(a.record, a.desired, a.exempt) }

// lists reports that a record is of what a module lists, but for fields that a policy leaves as they are. One that was to go is of nothing.
func lists(r *apply.Record, desired *apply.Desired, exempt *plan.Exempt) bool {
	switch {
	case r.Content.IsZero():
		return false
	case r.Exempt == nil && exempt == nil:
		return desired.Is(r.Content)
	}
	return r.Exempt.Same(desired, exempt)
}

// wasAlike reports of an object that is gone, and that a policy leaves so, that the module lists it as when it was written. Where it is known to be gone the
// record is of the sync then.
func (w *worker) wasAlike(it *item, facts *plan.Facts) bool {
	rec := w.m.inventory.Get(it.entry.ID)
	if rec.Module != w.ref || !rec.Written() || rec.Want == it.want || it.policy.Drift == fleet.DriftCorrect || !facts.Gone() {
		return false
	}
	content, err := w.m.o.Contents.Object(it.entry.Digest)
	if err != nil {
		return false // which who makes it says
	}
	desired, err := apply.NewDesired(it.entry.ID, content, it.entry.Digest, w.bound(it), w.how)
	if err != nil || !lists(rec, desired, it.exempt) {
		return false
	}
	facts.Alike = true
	if !facts.Live.Made && (facts.Live.Exists || facts.Live.Confirmed) && facts.StaysGone() {
		w.noteAlike(rec.ID, it.want, desired.Content, w.cur.sync.Age())
		facts.Record = &w.m.inventory.Get(rec.ID).Record
	}
	return true
}

// noteAlike has the record of an object be of a sync that needs no write of it.
func (w *worker) noteAlike(id fleet.ObjectID, want, content fleet.Digest, age fleet.Age) {
	w.m.inventory.Amend(w.ref, id, func(r *apply.Record) bool {
		r.Record = r.At(age)
		r.Want, r.Content = want, content
		return true
	})
}

// staysGone notes that an object which is gone stays so, where a policy leaves what somebody deleted and no revision is to make it.
func (a *writer) staysGone() bool {
	facts := plan.Facts{Record: &a.record.Record, Policy: *a.policy, Alike: true}
	if !facts.StaysGone() {
		return false
	}
	a.w.m.watcher.ConfirmGone(a.resource, a.namespace, a.id.Name, a.record.UID)
	a.w.noteAlike(a.id, a.want, a.desired.Content, a.sync.Age())
	return true
}

// leaves is the verb by which a write judges what a policy leaves of the object that the record has. Only a revision that changes the object has its way
// with that. What is written for another reason leaves what a repeated write leaves: the object is to carry other marks or goes from one module to
// another, or nobody knows whether the last write, which was of the same, was carried out.
func (a *writer) leaves() plan.Verb {
	if (a.verb == plan.Apply || a.verb == plan.Create) && a.unchanged() {
		return plan.Repeat
	}
	return a.verb
}

// leaveExempt looks what of the live object is left as it is, and lets go of it. An object that is gone, or another one, is left to the
// write that finds that out.
func (a *writer) leaveExempt(ctx context.Context) error {
	if a.exempt == nil {
		return nil
	}
	if err := a.knowsWhatIsLeft(ctx); err != nil {
		return err
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		return nil
	}
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: live}
	if string(u.GetUID()) != a.record.UID {
		return nil
	}
	if err := a.unlessAnnotated(live); err != nil {
		return err
	}
	if live, err = a.release(ctx, live); err != nil {
		return err
	}
	if err := a.leaveReplicas(ctx, live); err != nil {
		return err
	}
	a.seen = (&unstructured.Unstructured{Object: live}).GetResourceVersion()
	return a.leaveLive(ctx, live, a.leaves())
}

// knowsWhatIsLeft is an error where fields are left as they are, and the API server that answers does not know how the kind is defined now: what is live, and
// is to be left, may be more than it tells, and is taken away by what is written by it. So it is asked before it is asked for the object.
func (a *writer) knowsWhatIsLeft(ctx context.Context) error {
	if a.exempt == nil {
		return nil
	}
	return a.about(a.w.m.mapper.Knows(ctx, a.resource))
}

// asSeen ties a correction to the object that is known. One whose replicas it would set is tied to the version that was seen:
// an autoscaler may have scaled it for the first time since, while the correction waited for its turn. So is one of which what is
// live says what is left of it.
func (a *writer) asSeen() apply.Guard {
	g := apply.Guard{UID: a.record.UID}
	switch {
	case !a.setsReplicas() && a.exempt == nil:
	case a.seen != "":
		g.ResourceVersion = a.seen
	case a.print != nil && a.print.Version != 0:
		g.ResourceVersion = strconv.FormatUint(a.print.Version, 10)
	}
	return g
}

// setsReplicas reports that what is wanted names replicas, which are not left to an autoscaler.
func (a *writer) setsReplicas() bool { return !a.drop && a.record.Base.Replicas >= 0 }

// leaveOf works out what is applied to a live object.
func (a *writer) leaveOf(live map[string]any, verb plan.Verb) (err error) {
	l, u := apply.Leaving{Exempt: a.exempt, Verb: verb}, &unstructured.Unstructured{Object: live}
	if a.record != nil && a.record.UID == string(u.GetUID()) {
		l.Record = a.record
	}
	if a.uses(u) {
		live = apply.SeenAs(a.w.m.useManager(), live)
	}
	a.left, err = a.desired.Leave(live, l)
	return err
}

// keepAsIs notes that the object that is there is what is wanted: no revision writes it.
func (a *writer) keepAsIs(ctx context.Context) error {
	if x := a.record.Exempt; x != nil && x.Text == a.exempt.Text && a.record.Paths != nil && a.record.Algorithm == apply.Algorithm && !a.record.Want.IsZero() {
		a.w.noteAlike(a.id, a.want, a.desired.Content, a.sync.Age())
		return nil
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		a.w.m.watcher.ConfirmGone(a.resource, a.namespace, a.id.Name, a.record.UID)
		return nil
	}
	if err != nil {
		return err
	}
	if string((&unstructured.Unstructured{Object: live}).GetUID()) != a.record.UID {
		a.w.m.watcher.Observe(a.resource, live, a.record)
		return nil
	}
	return a.note(live)
}

// release has the API server note for nobody what is noted for us and a policy leaves to nobody: our next apply does not list it, and
// would take it away. It returns the object as it is then.
func (a *writer) release(ctx context.Context, live map[string]any) (map[string]any, error) {
	live, _, err := a.releaseAny(ctx, live, fleet.FieldManager)
	return live, err
}

// releaseAnswer is release of the answer to a write of ours. What it returns has the values of that answer, also where somebody wrote
// since: that is drift.
func (a *writer) releaseAnswer(ctx context.Context, answer map[string]any) (map[string]any, error) {
	released, err := a.desired.Release(answer, a.exempt, fleet.FieldManager)
	if err != nil {
		return nil, err
	}
	now, another, err := a.releaseAny(ctx, answer, fleet.FieldManager)
	if err != nil || !another {
		return now, err
	}
	a.released = released
	return released.Object, nil
}

// releaseAny reports also that another version than the one which is given was there. Controllers write to an object that was just
// made.
func (a *writer) releaseAny(ctx context.Context, live map[string]any, manager string) (now map[string]any, another bool, err error) {
	uid := (&unstructured.Unstructured{Object: live}).GetUID()
	for attempt := 0; ; attempt++ {
		released, err := a.desired.Release(live, a.exempt, manager)
		now, err := a.patched(ctx, live, released.Patch, err)
		if err == nil && released.Patch != nil {
			a.released = released
		}
		if err == nil || !kube.Is(err, kube.Conflict) || attempt == versionTries {
			return now, attempt > 0, err
		}
		if err := a.knowsWhatIsLeft(ctx); err != nil { // somebody wrote in between
			return nil, false, err
		}
		if live, err = a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name); err != nil {
			return nil, false, err
		}
		if (&unstructured.Unstructured{Object: live}).GetUID() != uid {
			return nil, false, &apply.Failure{Reason: apply.ReasonTerminating, Transient: true, Kind: fleet.ErrPrecondition,
				Message: a.id.String() + ": another object took its place while it was written"}
		}
		if err := a.unlessAnnotated(live); err != nil {
			return nil, false, err
		}
	}
}

// noteExempt has the record say what is left of an object that was just written.
func (a *writer) noteExempt(answer map[string]any, r *apply.Record) (err error) {
	var old *apply.Record
	if a.record != nil && a.record.UID == r.UID {
		old = a.record
	}
	if r.Exempt, err = a.w.m.inventory.Paths.Exempt(answer, a.desired, a.left, a.exempt, a.released, old); err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	return nil
}
