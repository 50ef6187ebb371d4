package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// use is what is known of a Namespace that the module lists, and in which it has nothing: it wants no label of it, or
// another module has it.
type use struct {
	owner   fleet.ModuleRef // zero: no module of ours
	uid     string          // that was looked at; empty: there was none
	version uint64          // of it
	wants   bool            // something of it, which was compared
	unmet   []plan.Unmet
	at      time.Time // of the look
}

// onlyLists reports that the module lists an object and does not own it: a Namespace that somebody made or another module has, or what it
// comes into conflict about with who has that.
func (w *worker) onlyLists(it *item) bool {
	if it.use != nil {
		return true
	}
	namespace := plan.IsNamespace(it.entry.ID)
	if !namespace && !it.conflicts() {
		return false
	}
	rec := w.m.inventory.Get(it.entry.ID)
	if rec == nil || rec.Module != w.ref {
		return it.conflicts()
	}
	return rec.State == plan.Used || rec.State != plan.Owned && it.conflicts()
}

// holds reports that what was seen still counts. synced says that the watch shows all there is, held that nothing would be tried that
// compares it again.
func (u *use) holds(ref fleet.ModuleRef, rec *apply.Record, f *watch.Fingerprint, synced, held bool) bool {
	switch {
	case u == nil:
		return false
	case rec == nil:
		compared := !u.wants || held || f == nil || f.Version == u.version
		return u.owner == fleet.ModuleRef{} && u.stands(f, synced) && compared
	default: // what was looked at is no older than what the watch shows, but where the store was put back
		return rec.Module != ref && rec.Module == u.owner && (f == nil || f.Version == u.version)
	}
}

// changed reports that the Namespace is the one that was looked at, in the hands that it was in, and another version of it: it is to be compared
// again, which takes nothing but a look.
func (u *use) changed(ref fleet.ModuleRef, rec *apply.Record, f *watch.Fingerprint) bool {
	if u == nil || f == nil || f.UID != u.uid || f.Terminating {
		return false
	}
	if rec == nil {
		return u.owner == fleet.ModuleRef{} && u.wants
	}
	return rec.Module != ref && rec.Module == u.owner
}

// stands reports that the Namespace is there as it was looked at, as far as is known, and is to stay.
func (u *use) stands(f *watch.Fingerprint, synced bool) bool {
	if f == nil {
		return !synced
	}
	return f.UID == u.uid && !f.Terminating
}

// use applies the labels and annotations of a Namespace that is somebody else's, as far as they conflict with nobody. It
// is not marked, so it is never ours to delete.
func (a *writer) use(ctx context.Context, u *unstructured.Unstructured, by string, out *outcome) error {
	desired, err := a.left.Desired.Object()
	if err != nil {
		return err
	}
	if u, err = a.renamed(ctx, u); err != nil {
		return err
	}
	if u.Object, _, err = a.releaseAny(ctx, u.Object, a.w.m.useManager()); err != nil {
		return err
	}
	wants, live := apply.MetaOf(desired), apply.MetaOf(u.Object)
	had := a.record != nil && a.record.State == plan.Used
	switch {
	case len(wants) == 0 && !had:
		a.letGo(out, u.Object, nil)
		return nil
	case managedByTowline(u):
		if had {
			if _, err := a.unused(ctx, u.Object); err != nil {
				return err
			}
		}
		a.letGo(out, u.Object, a.shielded(wants.Differ(live, by)))
		out.use.wants = len(wants) > 0
		return nil
	}
	answer, unmet, err := a.applyMeta(ctx, u, wants, live)
	if err != nil {
		return err
	}
	if len(wants) == 0 {
		a.letGo(out, answer, nil)
		return nil
	}
	if err := a.noteUse(answer, a.shielded(unmet)); err != nil {
		return err
	}
	if a.drift == fleet.DriftDrifted {
		a.tell(answer)
	}
	return nil
}

// managedByTowline reports that the object carries marks: our apply would take their owner's fields away.
func managedByTowline(u metav1.Object) bool {
	_, hub := u.GetLabels()[fleet.HubLabel]
	_, owner := u.GetAnnotations()[fleet.OwnerAnnotation]
	return hub || owner
}

// letGo notes that the Namespace is used with nothing of ours in it. Another module may have it now. It carries no label of
// ours, so that the watch has to be told of it.
func (a *writer) letGo(out *outcome, live map[string]any, unmet []plan.Unmet) {
	f := a.w.m.watcher.Observe(a.resource, live, nil)
	out.use = &use{uid: f.UID, version: f.Version, unmet: unmet, at: time.Now()}
	a.w.m.inventory.Drop(a.w.ref, a.id)
	for _, x := range a.w.m.inventory.Wishes(a.id) {
		a.w.m.retry(x.Module, a.id)
	}
}

// useManager is the field manager of what is applied to used Namespaces. They carry no mark, so that two agents may use the same
// one, for different hubs: each has a namespace of its own to live in, and so has a manager of its own. An apply of one would
// take away what another one wants otherwise.
func (m *Manager) useManager() string {
	if m.o.Namespace == fleet.AgentNamespace {
		return fleet.FieldManager
	}
	return fleet.FieldManager + "/" + m.o.Namespace
}

// uses reports that an object is the one that the record has as used by the module.
func (a *writer) uses(u *unstructured.Unstructured) bool {
	r := a.record
	return r != nil && r.Module == a.w.ref && r.State == plan.Used && r.UID == string(u.GetUID())
}

// renamed is the Namespace with what we applied noted for the field manager that we apply as now: before it had a name of its own,
// an agent applied as any other.
func (a *writer) renamed(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if !a.uses(u) {
		return u, nil
	}
	patch, err := a.w.m.inventory.Paths.Rename(u.Object, a.w.m.useManager(), a.record.Paths)
	live, err := a.patched(ctx, u.Object, patch, err)
	return &unstructured.Unstructured{Object: live}, err
}

// unused takes back what we applied to a Namespace that is not used any more, but was adopted, or is another agent's. It
// returns the object as it is then.
func (a *writer) unused(ctx context.Context, live map[string]any) (map[string]any, error) {
	if a.w.m.useManager() == fleet.FieldManager {
		return live, nil // who adopts it has those fields now
	}
	body, err := apply.Meta{}.Body(a.id, a.entry.Version, apply.Guard{UID: string((&unstructured.Unstructured{Object: live}).GetUID())})
	if err != nil {
		return nil, err
	}
	return a.send(ctx, localpolicy.Release, body, apply.ApplyOptions{Manager: a.w.m.useManager()})
}

// applyMeta applies labels and annotations without those that others have otherwise, which it says. What is ours already
// is forced, on the version that was looked at only: another one may have taken more since.
func (a *writer) applyMeta(ctx context.Context, u *unstructured.Unstructured, wants, live apply.Meta) (map[string]any, []plan.Unmet, error) {
	var ours map[string]bool
	if a.record != nil && a.record.UID == string(u.GetUID()) { // what was ours in one that is gone is not in this one
		ours = a.mine(a.record.Paths)
	}
	var unmet []plan.Unmet
	free := apply.Meta{}
	for k, v := range wants {
		free[k] = v
	}
	guard := apply.Guard{UID: string(u.GetUID())}
	if a.w.m.useManager() == fleet.FieldManager {
		guard.ResourceVersion = u.GetResourceVersion() // one may adopt it while the write waits for its turn
	}
	for force := false; ; { // ends, for with each conflict there is less to apply, or none is left
		body, err := free.Body(a.id, a.entry.Version, guard)
		if err != nil {
			return nil, nil, err
		}
		answer, err := a.send(ctx, localpolicy.Update, body, apply.ApplyOptions{Force: force, Manager: a.w.m.useManager()})
		conflicts := apply.FieldConflicts(err)
		if len(conflicts) == 0 {
			return answer, unmet, err
		}
		for _, c := range conflicts {
			k, known := free.At(c.Field)
			switch {
			case ours[c.Field], a.forces():
				force, guard.ResourceVersion = true, u.GetResourceVersion()
			case !known:
				return nil, nil, a.contested(ctx, c)
			default:
				unmet = append(unmet, wants.Unmet(k, live, c.Manager))
				delete(free, k)
			}
		}
	}
}

// noteUse records what the answer proves.
func (a *writer) noteUse(answer map[string]any, unmet []plan.Unmet) error {
	answer = apply.SeenAs(a.w.m.useManager(), answer)
	paths, err := a.w.m.inventory.Paths.Ours(answer)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	r := a.written(answer, paths, paths.Of(answer))
	r.State = plan.Used
	if err := a.noteExempt(answer, r); err != nil {
		return err
	}
	if err := a.noteHidden(answer, r); err != nil {
		return err
	}
	if len(unmet) > 0 {
		r.Unmet = &unmet
	}
	a.keep(answer, r)
	return nil
}

// guest looks at a Namespace that another module has: where it is not as this one wants it, that is said.
func (a *writer) guest(ctx context.Context, out *outcome) error {
	if a.record == nil {
		return a.guestOfOthers(ctx, out)
	}
	out.use = &use{owner: a.record.Module, at: time.Now()}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if kube.IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: live}
	wants, err := a.wantsOf(live)
	if err != nil {
		return err
	}
	out.use.uid, out.use.version = string(u.GetUID()), apply.ParseVersion(u.GetResourceVersion())
	out.use.unmet = a.shielded(wants.Differ(apply.MetaOf(live), a.record.Module.Display()))
	return nil
}

// wantsOf are the labels and annotations that the module wants of an object that others have, without those that a policy leaves.
func (a *writer) wantsOf(live map[string]any) (apply.Meta, error) {
	left, err := a.desired.Leave(live, apply.Leaving{Exempt: a.exempt, Verb: plan.Apply})
	if err != nil {
		return nil, err
	}
	desired, err := left.Desired.Object()
	if err != nil {
		return nil, err
	}
	return apply.MetaOf(desired), nil
}

// guestOfOthers looks again at a Namespace that an agent of another hub has. If that is not so any more, it is decided anew what to do about it.
func (a *writer) guestOfOthers(ctx context.Context, out *outcome) error {
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if out.again = true; kube.IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: live}
	claimant, err := a.w.m.claimantOf(ctx, a.w.ref, u.GetLabels())
	if err != nil {
		return err
	}
	adoption := plan.Adopt(claimant, a.liveID(), a.describe(u), a.policies, *a.policy)
	taken := adoption.Verdict == plan.AdoptOwn || adoption.Verdict == plan.AdoptForced
	if u.GetDeletionTimestamp() != nil || !managedByTowline(u) || taken {
		return nil
	}
	wants, err := a.wantsOf(live)
	if err != nil {
		return err
	}
	f := a.w.m.watcher.Observe(a.resource, live, nil)
	out.again = false
	out.use = &use{uid: f.UID, version: f.Version, wants: len(wants) > 0, unmet: a.shielded(wants.Differ(apply.MetaOf(live), adoption.By)), at: time.Now()}
	return nil
}

// unuse takes our fields back from an object that is somebody else's, unless they are to stay.
func (e *eraser) unuse(ctx context.Context, r plan.Record) {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	res := e.kinds[kindOf(r)].Resource
	seen, live, err := e.w.see(ctx, res, r)
	if why := e.w.annotation(live); err == nil && why != "" {
		e.take(erased{record: r, leaving: leaving{reason: plan.ReasonHeld, message: why}})
		return
	}
	there := err == nil && seen.Found && seen.UID == r.UID && !seen.Terminating
	if there && e.in.Keeps(r, seen.Labels) {
		e.take(erased{record: r, kept: e.keep(r, seen, plan.RuleProtection)})
		return
	}
	if there && !e.in.Leaves(r, seen.Labels) && !e.w.m.appliesAs(live) {
		err = e.takeBack(ctx, r, res, live)
	}
	switch {
	case errors.Is(err, errSuperseded), errors.Is(err, errHeld):
		e.take(erased{record: r, leaving: e.unsent(r.ID, err)})
		return
	case kube.Is(err, kube.Conflict):
		e.take(erased{record: r, leaving: leaving{reason: plan.ReasonRemoving, message: "changes at this moment; it is looked at again"}})
		return
	case err != nil:
		e.take(erased{record: r, fail: e.w.explain(ctx, res, r.ID, nil, nil, err)})
		return
	}
	e.w.log.Info("object is not used any more", "object", r.ID.String(), "uid", r.UID, "generation", e.in.Age.Generation)
	if !there {
		e.lost = append(e.lost, vanished{record: r, resource: res})
		e.forget(ctx)
		return
	}
	e.w.m.inventory.Drop(e.w.ref, r.ID)
}

// appliesAs reports that another agent has applied to a live object under the field manager that this one uses Namespaces with, as who
// adopts one does: all that is noted for it is that one's now, its marks as well.
func (m *Manager) appliesAs(live metav1.Object) bool {
	return m.useManager() == fleet.FieldManager && managedByTowline(live)
}

// takeBack applies nothing in place of what we applied.
func (e *eraser) takeBack(ctx context.Context, r plan.Record, res apply.Resource, live *metav1.PartialObjectMetadata) error {
	if err := e.rename(ctx, r, res); err != nil {
		return err
	}
	g := apply.Guard{UID: r.UID}
	if e.w.m.useManager() == fleet.FieldManager {
		g.ResourceVersion = live.ResourceVersion // one may adopt it while the write waits for its turn
	}
	return e.w.write(ctx, act{verb: localpolicy.Release, id: r.ID}, func(ctx context.Context) error {
		if err := e.w.unlessSuperseded(); err != nil {
			return err
		}
		body, err := apply.Meta{}.Body(r.ID, r.Version, g)
		if err == nil {
			_, err = e.w.m.client.Apply(ctx, res, namespaceOf(res, r.ID), r.ID.Name, body, apply.ApplyOptions{Manager: e.w.m.useManager()})
		}
		return err
	})
}

// rename is renamed for a Namespace that is not to be used any more.
func (e *eraser) rename(ctx context.Context, r plan.Record, res apply.Resource) error {
	known := e.w.m.inventory.Get(r.ID)
	if e.w.m.useManager() == fleet.FieldManager || known == nil {
		return nil
	}
	live, err := e.w.m.client.Get(ctx, res, namespaceOf(res, r.ID), r.ID.Name)
	if err != nil {
		return err
	}
	patch, err := e.w.m.inventory.Paths.Rename(live, e.w.m.useManager(), known.Paths)
	if patch == nil || err != nil {
		return err
	}
	return e.w.write(ctx, act{verb: localpolicy.Release, id: r.ID}, func(ctx context.Context) error {
		if err := e.w.unlessSuperseded(); err != nil {
			return err
		}
		_, err := e.w.m.client.Patch(ctx, res, namespaceOf(res, r.ID), r.ID.Name, patch)
		return err
	})
}

// unmetDetail says what of a used object is not as wanted.
func unmetDetail(id fleet.ObjectID, owner fleet.ModuleRef, list []plan.Unmet) detail {
	first := list[0]
	fields := first.Pointer + " is"
	if len(list) > 1 {
		fields = fmt.Sprintf("%s and %d more fields are", first.Pointer, len(list)-1)
	}
	message := fmt.Sprintf("%s: %s managed by %q, and left so; take them out of the module, or set the policy conflict: Force", id, fields, first.By)
	if owner != (fleet.ModuleRef{}) {
		message = fmt.Sprintf("%s: belongs to module %s, and %s left as that has them; make them equal in both modules", id, owner.Display(), fields)
	}
	return detail{apply.ReasonConflict, message, first.By, values{first.Pointer, first.Want, first.Live}}
}
