package worker

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// existing decides about an object that is there and that we did not expect. found is false if it is gone meanwhile.
func (a *writer) existing(ctx context.Context, out *outcome) (live map[string]any, found bool, err error) {
	if err := a.knowsWhatIsLeft(ctx); err != nil {
		return nil, true, err
	}
	live, err = a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		if a.record != nil { // no event may tell, of an object that had lost our label
			a.w.m.watcher.ConfirmGone(a.resource, a.namespace, a.id.Name, a.record.UID)
		}
		return nil, false, nil
	}
	if err != nil {
		return nil, true, err
	}
	u := &unstructured.Unstructured{Object: live}
	if u.GetDeletionTimestamp() != nil {
		return nil, true, a.leaving()
	}
	if err := a.unlessAnnotated(live); err != nil {
		return nil, true, err
	}
	a.text = append(a.text, apply.OwnStringData(live)...)
	if err := a.leaveReplicas(ctx, live); err != nil {
		return nil, true, err
	}
	if r := a.record; r != nil && r.Module == a.w.ref && r.State == plan.Owned && r.UID == string(u.GetUID()) {
		if err = a.unlessServed(ctx, live); err == nil {
			live, err = a.takeUpRecorded(ctx, live)
		}
		return live, true, err
	}
	claimant, err := a.w.m.claimantOf(ctx, a.w.ref, u.GetLabels())
	if err != nil {
		return live, true, err
	}
	if a.record != nil {
		claimant = claimant.After(&a.record.Record)
	}
	there := a.describe(u)
	adoption := plan.Adopt(claimant, a.liveID(), there, a.policies, *a.policy)
	verb := plan.Apply
	switch {
	case adoption.Verdict == plan.AdoptOwn: // nobody knows what a revision brings
		verb = plan.Repeat
	case adoption.Verdict != plan.AdoptForced && a.uses(u):
		verb = a.leaves()
	}
	if err := a.leaveLive(ctx, live, verb); err != nil {
		return nil, true, err
	}
	switch adoption.Verdict {
	case plan.AdoptOwn: // of what was lost nobody knows who came first
		if err := a.unlessGuessed(ctx, live); err != nil {
			return nil, true, err
		}
		if a.adopted = a.halfAdopted(claimant, there); !a.adopted {
			break
		}
		if u.Object, err = a.takeOver(ctx, live); err != nil { // of what that attempt applied, which may be another revision
			return nil, true, err
		}
	default:
		a.keepers = plan.Keepers(there)
	}
	if plan.IsNamespace(a.id) && adoption.Verdict != plan.AdoptOwn && adoption.Verdict != plan.AdoptForced {
		return nil, true, a.use(ctx, u, adoption.By, out)
	}
	live, err = a.adopt(ctx, u, adoption)
	return live, true, err
}

// takeUpRecorded applies to an object that the module is known to have.
func (a *writer) takeUpRecorded(ctx context.Context, live map[string]any) (map[string]any, error) {
	g := apply.Guard{UID: a.record.UID}
	live, err := a.release(ctx, live)
	if err != nil {
		return nil, err
	}
	if a.exempt != nil {
		g.ResourceVersion = (&unstructured.Unstructured{Object: live}).GetResourceVersion()
	}
	if err := a.leaveLive(ctx, live, a.leaves()); err != nil {
		return nil, err
	}
	return a.takeUp(ctx, live, a.record.Paths, g)
}

// halfAdopted reports that an attempt before this one may have taken the object from somebody, and not come to its end: it proves to
// be the module's, but what the other one had of it is still there.
func (a *writer) halfAdopted(c plan.Claimant, there plan.Existing) bool {
	if a.record == nil || a.record.Written() || a.record.Found {
		return false
	}
	there.Proof = plan.Proof{}
	return plan.Adopt(c, a.liveID(), there, a.policies, *a.policy).Verdict != plan.AdoptRefuse
}

// describe is what the rules of adoption ask about.
func (a *writer) describe(u *unstructured.Unstructured) plan.Existing {
	fields := u.GetManagedFields()
	return plan.Existing{Labels: u.GetLabels(), Annotations: u.GetAnnotations(), Owners: ownersOf(u.GetOwnerReferences()),
		Appliers: apply.AppliersOf(fields), Holders: apply.HoldersOf(fields), Creator: creator(u), Proof: apply.ProofOf(fields)}
}

func ownersOf(list []metav1.OwnerReference) (out []plan.OwnerReference) {
	for _, o := range list {
		out = append(out, plan.OwnerReference{Kind: o.Kind, Name: o.Name, Controller: o.Controller != nil && *o.Controller})
	}
	return out
}

// adopt makes an object ours, as far as the verdict lets it.
func (a *writer) adopt(ctx context.Context, u *unstructured.Unstructured, adoption plan.Adoption) (map[string]any, error) {
	guard := apply.Guard{UID: string(u.GetUID())}
	switch adoption.Verdict {
	case plan.AdoptOwn:
		return a.takeUp(ctx, u.Object, nil, guard)
	case plan.AdoptRefuse:
		return nil, a.refused(adoption, adoption.Whose)
	case plan.AdoptForced:
		if err := a.mayTake(ctx, adoption); err != nil {
			return nil, err
		}
	}
	if adoption.Verdict == plan.AdoptAgain || adoption.Verdict == plan.AdoptForced {
		live, err := a.release(ctx, u.Object)
		if err != nil {
			return nil, err
		}
		u = &unstructured.Unstructured{Object: live}
	}
	guard.ResourceVersion = u.GetResourceVersion()
	switch adoption.Verdict {
	case plan.AdoptAgain:
		paths, err := a.w.m.inventory.Paths.Ours(u.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.id, err)
		}
		a.w.log.Info("object taken up again", "object", a.id.String(), "uid", guard.UID)
		return a.update(ctx, paths, guard)
	case plan.AdoptIfEqual:
		if err := a.differs(ctx, u, adoption, guard); err != nil {
			return nil, err
		}
	}
	a.adopted = true
	a.w.log.Info("object adopted", "object", a.id.String(), "uid", guard.UID, "policy", a.policy.Adopt, "from", adoption.By)
	return a.put(ctx, guard, apply.ApplyOptions{Strict: true, Force: true})
}

// takeUp applies to an object that is the module's. Paths that are known to be ours are forced. If no record says which they
// are, all are that may have been ours, unless a policy leaves drift as it is.
func (a *writer) takeUp(ctx context.Context, live map[string]any, paths *apply.PathSet, g apply.Guard) (map[string]any, error) {
	live, err := a.release(ctx, live)
	if err != nil {
		return nil, err
	}
	if a.exempt.KeepsWhole() && a.verb == plan.Create {
		return live, nil
	}
	switch {
	case a.verb == plan.Correct:
		if a.setsReplicas() {
			g.ResourceVersion = (&unstructured.Unstructured{Object: live}).GetResourceVersion()
		}
		return a.put(ctx, g, apply.ApplyOptions{Strict: true, Force: true})
	case paths != nil:
		return a.update(ctx, paths, g)
	}
	answer, err := a.put(ctx, g, apply.ApplyOptions{Strict: true})
	conflicts := apply.FieldConflicts(err)
	if len(conflicts) == 0 {
		return answer, err
	}
	if c, found := a.neverOurs(live, conflicts); found {
		return nil, a.contested(ctx, c)
	}
	g.ResourceVersion = (&unstructured.Unstructured{Object: live}).GetResourceVersion()
	if a.policy.Drift != fleet.DriftCorrect {
		drift, err := a.takeUpDrifted(ctx, live, g, conflicts[0])
		if drift || err != nil {
			return nil, err
		}
	}
	return a.put(ctx, g, apply.ApplyOptions{Strict: true, Force: true})
}

// neverOurs finds a field that another manager had before our last write: it would be ours since then if it had ever been, so
// that the policy for conflicts governs it.
func (a *writer) neverOurs(live map[string]any, conflicts []apply.FieldConflict) (apply.FieldConflict, bool) {
	for _, c := range conflicts {
		scaled := c.Field == ".spec.replicas" && apply.IsAutoscaler(c.Manager, c.Subresource)
		if !a.forces() && !scaled && apply.HeldBeforeUs(live, c) {
			return c, true
		}
	}
	return apply.FieldConflict{}, false
}

// takeUpDrifted judges an object of which no record says what our last write left, so that nothing but the object itself tells
// drift from what a new revision brings: where an apply would change nothing but what others hold, it is drift, and stays.
func (a *writer) takeUpDrifted(ctx context.Context, live map[string]any, g apply.Guard, c apply.FieldConflict) (drift bool, err error) {
	forced, err := a.put(ctx, g, apply.ApplyOptions{Strict: true, Force: true, DryRun: true})
	if kube.Is(err, kube.BadRequest) { // a webhook that takes no dry run
		return false, a.contested(ctx, c)
	}
	if err != nil {
		return false, err
	}
	renews, err := apply.Renews(live, forced, a.drop)
	if err != nil {
		return false, fmt.Errorf("%s: %w", a.id, err)
	}
	if renews {
		return false, nil
	}
	return true, a.noteDrifted(live, forced)
}

// takeAsChanged puts the module's marks on an object, and leaves what others changed of it, where the policy leaves drift and no revision changed the
// object: another module that listed it alike handed it over, or it carries the marks of another hub. What somebody deleted stays so. taken is false where
// that is not so, or cannot be done.
func (a *writer) takeAsChanged(ctx context.Context) (taken bool, err error) {
	r := a.record
	if a.policy.Drift == fleet.DriftCorrect || r.Algorithm != apply.Algorithm || a.verb != plan.Apply || !a.unchanged() {
		return false, nil
	}
	if err := a.knowsWhatIsLeft(ctx); err != nil {
		return false, err
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		return a.staysGone(), nil
	}
	if a.exempt.KeepsWhole() || err != nil {
		return false, err
	}
	u := &unstructured.Unstructured{Object: live}
	if string(u.GetUID()) != r.UID || u.GetDeletionTimestamp() != nil {
		return false, nil
	}
	if err := a.unlessAnnotated(live); err != nil {
		return false, err
	}
	if a.exempt != nil {
		if live, err = a.release(ctx, live); err != nil {
			return false, err
		}
		if err := a.leaveLive(ctx, live, plan.Repeat); err != nil {
			return false, err
		}
	}
	whole := a.left.Desired
	held, lost, err := whole.Held(live, r)
	if !lost || err != nil {
		return false, err
	}
	forced, err := a.put(ctx, apply.Guard{UID: r.UID}, apply.ApplyOptions{Strict: true, Force: true, DryRun: true})
	if kube.Is(err, kube.BadRequest) { // a webhook that takes no dry run
		return false, nil
	}
	if err != nil {
		return false, err
	}
	a.left.Desired = held
	live, err = a.put(ctx, apply.Guard{UID: r.UID}, apply.ApplyOptions{Strict: true}) // nothing is forced: another version will do
	if a.left.Desired = whole; kube.Is(err, kube.Conflict, kube.Invalid) || err == nil && a.unmarked(live) != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, a.noteDrifted(live, forced)
}

// noteDrifted makes the record of an object that stays as others changed it. It is as an apply of ours would have left it,
// so that what differs from that is drift, and the next revision has its way.
func (a *writer) noteDrifted(live, forced map[string]any) error {
	paths, base, err := a.w.m.inventory.Paths.Written(forced, a.left.Desired, a.drop)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	r := a.written(live, paths, base)
	if a.unmarked(live) != nil { // what stands on it is of whichever hub the agent belonged to when it wrote that
		r.Born, r.Lineage = 0, 0
	}
	if err := a.noteExempt(forced, r); err != nil {
		return err
	}
	if err := a.noteHidden(live, r); err != nil {
		return err
	}
	a.w.log.Info("object taken up again as others changed it", "object", a.id.String(), "uid", r.UID, "policy", a.policy.Drift)
	a.w.m.watcher.Observe(a.resource, live, r) // first, as in keep; but what is live is compared to the record, which was not made from it
	a.w.noteRecord(r)
	return nil
}

// takeOver makes the fields that were just applied ours alone, where programs without server-side apply hold them, too.
func (a *writer) takeOver(ctx context.Context, live map[string]any) (map[string]any, error) {
	patch, err := apply.TakeOver(live, a.adopted, a.exempt)
	live, err = a.patched(ctx, live, patch, err)
	if err == nil && a.adopted {
		a.keepers = plan.Keepers(a.describe(&unstructured.Unstructured{Object: live})) // those whose marks went count when they are back
	}
	return live, err
}

// patched sends a patch that was made of the live object; without one the object stays as it is.
func (a *writer) patched(ctx context.Context, live map[string]any, patch []byte, err error) (map[string]any, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.id, err)
	}
	if patch == nil {
		return live, nil
	}
	return a.gated(ctx, localpolicy.Update, func(ctx context.Context) (map[string]any, error) {
		return a.w.m.client.Patch(ctx, a.resource, a.namespace, a.id.Name, patch)
	})
}

// refused says whose the object is that the module lists.
func (a *writer) refused(adoption plan.Adoption, whose string) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrExists, By: adoption.By,
		Message: fmt.Sprintf("%s: %s; %s", a.id, whose, adoption.Remedy)}
}

// differs says where an object is not as desired that may be taken only if it is; nil if it is. It is when every field has the
// value that the module lists, and the apply that takes it would change no value. What another tool applies as the module lists it
// is that one's, however equal.
func (a *writer) differs(ctx context.Context, u *unstructured.Unstructured, adoption plan.Adoption, g apply.Guard) error {
	if a.exempt.KeepsWhole() { // it is applied as it is, which does not make it the module's
		partly := *a
		partly.treatment = &treatment{policy: a.policy, exempt: a.exempt.Fields()} // other items share that of this one
		if err := partly.leaveLive(ctx, u.Object, plan.Apply); err != nil {
			return err
		}
		a = &partly
	}
	desired, err := a.left.Desired.Object()
	if err != nil {
		return err
	}
	d := apply.Difference(desired, u.Object)
	var by string
	if d == nil {
		d, by, err = a.overwrites(ctx, u.Object, g)
	}
	if err == nil && d == nil && by != "" {
		adoption.By, adoption.Remedy = by, "have that let it go, or set the policy adopt: Always for it"
		return a.refused(adoption, "is applied by "+by+", as the module lists it")
	}
	if d == nil || err != nil {
		return err
	}
	f := a.refused(adoption, adoption.Whose+", and differs at "+a.field(d.Pointer))
	a.w.valuesOf(a.liveID(), a.shows(), apply.Field{Pointer: d.Pointer, Live: d.Live}, d.Want).tell(f)
	return f
}

// overwrites is the first value that an apply would change; nil: none. by is a tool that applies all that the module lists.
func (a *writer) overwrites(ctx context.Context, live map[string]any, g apply.Guard) (d *apply.Differs, by string, err error) {
	answer, err := a.put(ctx, g, apply.ApplyOptions{Strict: true, Force: true, DryRun: true})
	if err != nil {
		return nil, "", err
	}
	d, err = apply.Overwrites(live, answer)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", a.id, err)
	}
	for _, name := range apply.AppliersOfAll((&unstructured.Unstructured{Object: answer}).GetManagedFields(), nil) {
		if !plan.ByHand(name) {
			by = name
		}
	}
	return d, by, nil
}

// creator is the manager of the oldest entry.
func creator(u *unstructured.Unstructured) string {
	var oldest metav1.ManagedFieldsEntry
	for i, m := range u.GetManagedFields() {
		if i == 0 || m.Time.Before(oldest.Time) {
			oldest = m
		}
	}
	if oldest.Manager == "" {
		return "unknown"
	}
	return oldest.Manager
}
