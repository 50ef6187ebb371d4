package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// writer carries out one job.
type writer struct {
	w *worker
	job
	desired   *apply.Desired  // all that the module lists
	made      *apply.Desired  // what the object is made of
	left      apply.Remainder // what of it is applied to the object that is there
	released  apply.Released  // fields that were ours, and are nobody's by a policy
	namespace string
	seen      string   // the version that was looked at to see what is left; empty: none was
	drop      bool     // leave /spec/replicas to an autoscaler
	adopted   bool     // from somebody else, just now
	keepers   string   // of what was there already
	unsure    bool     // a write may have been committed though it failed
	text      []string // keys of a Secret that are ours as stringData
	halfway   bool     // deleted to be created again: a hold that comes now must not leave it away. What is there by then is under the hold
	created   bool     // the answer is of an object that this write made
	part      bool     // a hold stopped what follows that: the object is ours, and is to be written again
	first     bool     // no attempt came before this one to make what runs to an end
	again     string   // is put on the object to make another version of it; empty: nothing is
	// afresh begins the time anew that the object may take: to make it again takes many writes, each as long as a webhook that looks at images.
	afresh func() (context.Context, context.CancelFunc)
}

// objectTime bounds everything that is done about one object at a time, so that a server that hangs holds no slot.
const objectTime = time.Minute

// perform acts on one object. It may run beside others.
func (w *worker) perform(ctx context.Context, j job) outcome {
	out := outcome{item: j.item}
	a := &writer{w: w, job: j, drop: j.scaled}
	a.afresh = func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, w.m.o.objectTime) }
	bounded, cancel := a.afresh()
	defer cancel()
	err := w.about(j.id, func() (err error) {
		out.crd, err = a.run(bounded, &out)
		return err
	})
	if err != nil && (a.unsure || guard.Stack(err) != "") {
		a.doubt()
	}
	if out.annotated, out.autoscaled = errors.Is(err, errAnnotated), errors.Is(err, errAutoscaled); out.annotated || out.autoscaled {
		return out
	}
	if err != nil && (apply.Canceled(ctx, err) || errors.Is(err, errHeld) || errors.Is(err, errSuperseded)) {
		out.canceled = true
		return out
	}
	if err != nil {
		if apply.Answered(err) {
			a.confirmGone(bounded)
		}
		out.fail = a.judged(bounded, a.explain(bounded, err))
		out.moved = a.elsewhere(bounded, out.fail)
	}
	return out
}

func (a *writer) run(ctx context.Context, out *outcome) (crd map[string]any, err error) {
	if err := a.resolve(ctx); err != nil {
		return nil, err
	}
	if !a.resource.Namespaced && a.id.Namespace != "" {
		out.again = true // under the identity that it has now
		return nil, nil
	}
	if a.verb == plan.Look {
		out.again = true
		return nil, a.look(ctx)
	}
	if err := a.read(a.w.m.o.Contents); err != nil {
		return nil, err
	}
	if err := a.grants(); err != nil {
		return nil, err
	}
	switch a.verb {
	case plan.Read:
		return nil, a.readLive(ctx, out)
	case plan.Use:
		return nil, a.guest(ctx, out)
	case plan.Keep:
		return nil, a.keepAsIs(ctx)
	}
	if a.sameContent() {
		a.w.noteAlike(a.id, a.want, a.desired.Content, a.sync.Age())
		return nil, nil
	}
	return a.applyAll(ctx, out)
}

// applyAll writes the object, lets go in it of what is not listed any more, and records what is live then.
func (a *writer) applyAll(ctx context.Context, out *outcome) (crd map[string]any, err error) {
	defer a.w.m.watcher.Writing(a.resource, a.namespace, a.id.Name)()
	if a.record != nil {
		a.text = a.record.Paths.StringData()
	}
	if err := a.hide(); err != nil {
		return nil, err
	}
	if err := a.findScaler(ctx); err != nil {
		return nil, err
	}
	live, err := a.write(ctx, out)
	if err != nil || live == nil {
		return nil, err
	}
	whole, err := a.complete(ctx, live)
	if a.created && (errors.Is(err, errHeld) || errors.Is(err, errAnnotated)) {
		a.part = true // it is there and ours; the rest is for when the hold ends
		return a.defines(live), cmp.Or(a.note(live), err)
	}
	if err != nil {
		return nil, err
	}
	live = whole
	if err := a.note(live); err != nil {
		return nil, err
	}
	if a.drift == fleet.DriftDrifted {
		a.tell(live)
	}
	return a.defines(live), nil
}

// defines is the definition of a kind that was just written, which objects of that kind wait for; nil: it is none.
func (a *writer) defines(live map[string]any) map[string]any {
	if !plan.IsCRD(a.id) {
		return nil
	}
	a.w.m.defined.note(live, time.Now())
	return live
}

// complete follows a write with the requests that make of its answer what is to be. It returns the object as it is then.
func (a *writer) complete(ctx context.Context, live map[string]any) (map[string]any, error) {
	live, err := a.outrun(ctx, live)
	if err != nil {
		return nil, err
	}
	if live, err = a.releaseAnswer(ctx, live); err != nil {
		return nil, err
	}
	if live, err = a.takeOver(ctx, live); err != nil {
		return nil, err
	}
	if live, err = a.dropDivided(ctx, live); err != nil {
		return nil, err
	}
	return a.dropText(ctx, live)
}

// dropDivided takes away what the module lists no more of what a definition has divided since our last write. What a policy leaves is nobody's, too, so
// that nothing goes where there is one.
func (a *writer) dropDivided(ctx context.Context, live map[string]any) (map[string]any, error) {
	if !plan.IsCustom(a.id) || a.exempt != nil || a.record == nil || a.record.UID != string((&unstructured.Unstructured{Object: live}).GetUID()) {
		return live, nil
	}
	patch, err := a.record.Paths.DropDivided(live)
	return a.patched(ctx, live, patch, err)
}

// read makes the object that is to be applied.
func (a *writer) read(from Contents) error {
	content, err := from.Object(a.entry.Digest)
	if err != nil {
		return &apply.Failure{Reason: apply.ReasonContent, Kind: fleet.ErrNotFound, Transient: true,
			Message: fmt.Sprintf("%s: content %s is not here: %v", a.id, a.entry.Digest.Short(), err)}
	}
	if a.desired, err = apply.NewDesired(a.id, content, a.entry.Digest, a.values, a.w.how); err != nil {
		return &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: err.Error()}
	}
	a.left = apply.Remainder{Desired: a.desired}
	a.made, err = a.desired.Restored(apply.Leaving{Exempt: a.exempt, Verb: a.verb, Record: a.record})
	return err
}

// liveID is the identity that the object has in the cluster.
func (a *writer) liveID() fleet.ObjectID {
	id := a.id
	id.Namespace = a.namespace
	return id
}

// resolve finds the resource of the kind and starts its watch.
func (a *writer) resolve(ctx context.Context) error {
	if a.resource.Resource == "" {
		res, err := a.w.m.mapper.Resource(ctx, a.id, a.entry.Version)
		if err != nil {
			return err
		}
		a.resource = res
	}
	a.namespace = a.id.Namespace
	if !a.resource.Namespaced {
		a.namespace = ""
	}
	if a.verb == plan.Read {
		a.w.acquireOne(watch.Single{Resource: a.resource, Key: watch.Key{Namespace: a.namespace, Name: a.id.Name}}, a.liveID())
	} else {
		a.w.acquire(a.resource)
	}
	if a.resource.Namespaced && a.namespace == "" {
		return &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid,
			Message: a.id.String() + ": objects of this kind live in a namespace; set metadata.namespace, or spec.namespace of the module"}
	}
	return nil
}

// sameContent reports that only values changed which the object does not use.
func (a *writer) sameContent() bool {
	return a.verb == plan.Apply && a.record != nil && a.unchanged() && !a.record.Want.IsZero() &&
		a.record.Algorithm == apply.Algorithm && a.record.Version == a.entry.Version
}

// doubt notes that what is live may be another write of ours than the last that was answered, so that no target counts as
// applied before the next answer. Should this note be lost, the fields that the server counts as ours tell the same. Where that write was of something else
// than the record is of, what is not ours in the live object is not what others took: the record is of nothing then.
func (a *writer) doubt() {
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		before := *r
		r.Want = fleet.Digest{}
		if a.desired != nil && !lists(r, a.desired, a.exempt) && !r.MayHaveRun() {
			r.Content = fleet.Digest{}
		}
		return r.Written() && (r.Want != before.Want || r.Content != before.Content)
	})
}

// look reads the live object, so that the next decision has facts.
func (a *writer) look(ctx context.Context) error {
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		if a.record == nil {
			if a.print != nil { // of an object without our label, whose end no event tells
				a.w.m.watcher.Forget(a.resource, a.namespace, a.id.Name, a.print.UID)
			}
			return nil
		}
		a.w.m.watcher.ConfirmGone(a.resource, a.namespace, a.id.Name, a.record.UID)
		return a.inquire(ctx)
	}
	if err != nil {
		return err
	}
	a.w.m.watcher.Observe(a.resource, live, a.w.m.inventory.Get(a.id))
	if u := (&unstructured.Unstructured{Object: live}); a.record != nil && a.record.UID != string(u.GetUID()) {
		return a.inquire(ctx)
	}
	return nil
}

// write applies the object as the verb says. A nil answer without an error means that it is used as it is.
func (a *writer) write(ctx context.Context, out *outcome) (map[string]any, error) {
	if err := a.unlessUnseen(ctx); err != nil {
		return nil, err
	}
	live, err := a.inPlace(ctx, out)
	if apply.IsImmutable(err) && plan.IsCustom(a.id) {
		// By which definition was that said? One that was is no reason to make it again.
		if _, behind := a.abreast(ctx); behind != nil {
			return nil, behind
		}
		live, err = a.inPlace(ctx, out)
	}
	if apply.IsImmutable(err) {
		return a.recreate(out, err)
	}
	return live, err
}

func (a *writer) inPlace(ctx context.Context, out *outcome) (map[string]any, error) {
	switch {
	case !a.verb.Writes():
		return nil, fleet.Errorf(fleet.ErrPrecondition, "%s: %s is no reason to write", a.id, a.verb)
	case a.verb == plan.Create, a.verb == plan.Restore:
		return a.create(ctx, out)
	case a.record.State == plan.Used:
		live, found, err := a.existingNow(ctx, out)
		switch {
		case !found && err == nil:
			return a.create(ctx, out)
		case live == nil || err != nil:
			return nil, err
		}
		return a.unused(ctx, live)
	case a.verb == plan.Correct:
		if err := a.leaveExempt(ctx); err != nil {
			return nil, err
		}
		if err := a.leaveScaled(ctx); err != nil {
			return nil, err
		}
		live, err := a.put(ctx, a.asSeen(), apply.ApplyOptions{Force: true})
		return a.replaced(ctx, out, live, err)
	case a.record.Paths == nil: // found by its marks: what it says itself tells which fields may be ours
		live, found, err := a.existingNow(ctx, out)
		if found || err != nil {
			return live, err
		}
		return a.create(ctx, out)
	default:
		if err := a.reclaim(ctx); err != nil { // first, for what is ours is no drift
			return nil, err
		}
		if taken, err := a.takeAsChanged(ctx); taken || err != nil {
			return nil, err
		}
		if err := a.leaveExempt(ctx); err != nil {
			return nil, err
		}
		g := apply.Guard{UID: a.record.UID}
		if a.exempt != nil {
			g.ResourceVersion = a.seen
		}
		live, err := a.update(ctx, a.record.Paths, g)
		return a.replaced(ctx, out, live, err)
	}
}

// reclaim has the API server note our fields as ours again, where somebody took that note away.
func (a *writer) reclaim(ctx context.Context) error {
	if a.print == nil || a.print.UID != a.record.UID || a.print.Paths != a.record.Paths || !a.record.Stripped(a.print.Values) {
		return nil
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.unlessAnnotated(live); err != nil {
		return err
	}
	patch, err := a.record.Reclaim(live)
	_, err = a.patched(ctx, live, patch, err)
	return err
}

// put sends one apply, behind the gate and the fence.
func (a *writer) put(ctx context.Context, g apply.Guard, o apply.ApplyOptions) (map[string]any, error) {
	d := a.left.Desired
	if g.Absent {
		d = a.made
	}
	marks := a.w.m.marks(a.w.ref, a.liveID())
	marks.Again = a.again
	body, err := d.Body(marks, g, a.drop && !g.Absent)
	if err != nil {
		return nil, err
	}
	verb := localpolicy.Update
	if g.Absent {
		verb = localpolicy.Create
	}
	for attempt := 0; ; attempt++ {
		live, err := a.send(ctx, verb, body, o)
		mayPass := a.mayPass(err)
		if err == nil || attempt >= notServedRetries && !mayPass {
			return live, err
		}
		again, failed := a.redefine(ctx, err)
		switch {
		case failed != nil:
			return nil, failed
		case again:
			continue
		case !mayPass && !a.notServed(err):
			return live, err
		}
		if err := backoff.Wait(ctx, notServedPause); err != nil {
			return nil, err
		}
	}
}

const (
	notServedRetries = 10
	notServedPause   = 50 * time.Millisecond
)

func (a *writer) send(ctx context.Context, verb localpolicy.Verb, body []byte, o apply.ApplyOptions) (map[string]any, error) {
	return a.gated(ctx, verb, func(ctx context.Context) (map[string]any, error) {
		return a.w.m.client.Apply(ctx, a.resource, a.namespace, a.id.Name, body, o)
	})
}

// act is a write to the object in the words of the cluster's policy.
func (a *writer) act(verb localpolicy.Verb) act {
	x := act{verb: verb, id: a.liveID(), desired: a.left.Desired}
	switch verb {
	case localpolicy.Create, localpolicy.Recreate:
		x.desired = a.made
	case localpolicy.Release:
		x.desired = nil
	}
	return x
}

// gated sends a write behind the gate and the fence.
func (a *writer) gated(ctx context.Context, verb localpolicy.Verb, write func(context.Context) (map[string]any, error)) (map[string]any, error) {
	var live map[string]any
	send := func(ctx context.Context, request func(context.Context) error) error {
		return a.w.write(ctx, a.act(verb), request)
	}
	if a.halfway && verb == localpolicy.Create {
		send = a.w.m.finish
	}
	err := send(ctx, func(ctx context.Context) (err error) {
		live, err = write(ctx)
		a.unsure = a.unsure || apply.Unanswered(err)
		if apply.MayLand(err) {
			a.w.m.late.unanswered(a.id, time.Now())
		}
		return err
	})
	return live, err
}

// notServed reports that a kind which the mapper knows has no handler yet, as right after its CRD was established. If
// that lasts, the kind is gone.
func (a *writer) notServed(err error) bool {
	if !strings.Contains(a.id.Group, ".") || strings.HasSuffix(a.id.Group, ".k8s.io") {
		return false
	}
	if f := apply.Explain(a.id, err); f.Reason != apply.ReasonNoKind {
		return false
	}
	a.w.m.mapper.Reset(a.id.Group)
	return true
}

// create applies only if there is no such object, and otherwise decides by what is there.
func (a *writer) create(ctx context.Context, out *outcome) (map[string]any, error) {
	var err error
	if out.ran, err = a.ran(ctx); out.ran || err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		if out.ran, err = a.attempted(ctx); out.ran || err != nil {
			return nil, err
		}
		live, refused := a.put(ctx, apply.Guard{Absent: true}, apply.ApplyOptions{Strict: true})
		a.answered(refused)
		_, undefined := apply.UndefinedVersion(refused) // which is said before that there is an object
		if !kube.Is(refused, kube.Conflict) && !undefined {
			a.created = refused == nil
			return live, refused
		}
		live, found, err := a.existingNow(ctx, out)
		switch {
		case found || err != nil:
			return live, err
		case attempt == createTries: // it is not there, so that it is something else that the API server finds in conflict
			return nil, refused
		}
	}
}

// createTries is how often an object may be made and go again between the answer and the look at it.
const createTries = 2

// versionTries is how often another write may come between.
const versionTries = 4

// existingNow is existing, and decides again where somebody wrote between the look at the object and the write that followed from it.
func (a *writer) existingNow(ctx context.Context, out *outcome) (live map[string]any, found bool, err error) {
	for attempt := 0; ; attempt++ {
		live, found, err = a.existing(ctx, out)
		if !overtaken(err) || attempt == versionTries {
			return live, found, err
		}
	}
}

// overtaken reports that an object is not in the version any more that a write was about.
func overtaken(err error) bool {
	return kube.Is(err, kube.Conflict) && len(apply.FieldConflicts(err)) == 0
}

// replaced handles that the object we know is gone, is another one, or is not as it was seen any more.
func (a *writer) replaced(ctx context.Context, out *outcome, live map[string]any, err error) (map[string]any, error) {
	for attempt := 0; overtaken(err) && attempt < versionTries; attempt++ {
		found := false
		live, found, err = a.existing(ctx, out)
		if !found && err == nil {
			return a.create(ctx, out)
		}
	}
	return live, err
}

// note records what the answer proves.
func (a *writer) note(live map[string]any) error {
	paths, base, err := a.w.m.inventory.Paths.Written(live, a.left.Desired, a.drop)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	r, unmarked := a.written(live, paths, base), a.unmarked(live)
	if err := a.noteExempt(live, r); err != nil {
		return err
	}
	if err := a.noteHidden(live, r); err != nil {
		return err
	}
	if unmarked != nil || a.part {
		r.Want = fleet.Digest{} // to be written again
	}
	a.keep(live, r)
	return unmarked
}

// unmarked is what to say when admission in the cluster has taken a mark of ours off. No watch would show what becomes of
// an object without the label, and nobody could tell whose one without the annotation is.
func (a *writer) unmarked(live map[string]any) error {
	u := &unstructured.Unstructured{Object: live}
	mark, kept := "label "+fleet.HubLabel, u.GetLabels()[fleet.HubLabel] == a.w.m.o.HubID
	if kept {
		mark, kept = "annotation "+fleet.OwnerAnnotation, u.GetAnnotations()[fleet.OwnerAnnotation] == a.w.m.marks(a.w.ref, a.liveID()).Owner
	}
	if kept {
		return nil
	}
	return &apply.Failure{Reason: apply.ReasonUnmarked, Kind: fleet.ErrDenied, Message: fmt.Sprintf(
		"%s: an admission policy or webhook of the cluster took the %s off, or changed it; exempt towline.dev/ in it: without it, nobody sees what changes here", a.id, mark)}
}

// keep notes the record that an answer proves.
func (a *writer) keep(answer map[string]any, r *apply.Record) {
	a.w.m.watcher.Answered(a.resource, answer, r) // first: what is seen must not be older than the record
	a.w.noteRecord(r)
}

// noteRecord notes what the module's record of an object says from now on. Whoever goes by what it said before looks again: modules that handed the
// object over and need not wait for it any more, those that use it as a Namespace, and those that share it. No event tells them.
func (w *worker) noteRecord(r *apply.Record) {
	old := w.m.inventory.Get(r.ID)
	w.m.inventory.Put(r)
	if old != nil && r.Givers == "" {
		w.tellGivers(r.ID, old.Givers)
	}
	if plan.IsNamespace(r.ID) || r.Shared {
		w.m.touchWaiting(r.ID)
	}
}

// written is the record of an object that we have just written.
func (a *writer) written(live map[string]any, paths *apply.PathSet, base apply.Values) *apply.Record {
	u := &unstructured.Unstructured{Object: live}
	born, lineage, keepers, scaler, givers := a.sync.Generation, a.sync.Lineage, a.keepers, "", ""
	old := a.w.m.inventory.Get(a.id)
	if old != nil && old.Module == a.w.ref {
		// Who scales goes by the name, also of one that is made again; and that takes up pods that were left of the one before.
		born, lineage, scaler, givers = old.Born, old.Lineage, old.Scaler, old.Givers
		if old.UID == string(u.GetUID()) {
			keepers = old.Keepers
		}
	}
	r := &apply.Record{Content: a.desired.Content, Paths: paths, Base: base, Algorithm: apply.Algorithm}
	r.Record = plan.Record{ID: a.id, Version: a.entry.Version, Wave: a.entry.Wave, Module: a.w.ref, State: plan.Owned,
		UID: string(u.GetUID()), ResourceVersion: apply.ParseVersion(u.GetResourceVersion()), Want: a.want,
		Born: born, Lineage: lineage, Fleeting: plan.Fleeting(live), Outcome: plan.OutcomeOf(live),
		Aggregated: a.w.m.mapper.Aggregated(a.resource), Keepers: keepers, Scaler: scaler, Givers: givers, Prune: a.policy.Prune, Delete: a.policy.Delete, Named: a.named,
		Legacy: a.policy.KeepsLegacy(), Shared: a.policy.Shares()}
	if u.GetDeletionTimestamp() != nil {
		r.Want, r.Content = fleet.Digest{}, fleet.Digest{} // what is wanted is made when this one is gone, also if that ran to its end
	}
	r.Record = r.At(a.sync.Age())
	r.Makes(live, old)
	if r.Stays(old) {
		r.Givers = ""
	}
	return r
}
