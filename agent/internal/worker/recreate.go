package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// recreate deletes the object and creates it again, if what cannot be changed in place is all that is wrong with it, if
// the policies allow that, and if the API server would take the new one. What is asked before takes no time from what is done then: a
// deletion that is cut short each time would never come to its end.
func (a *writer) recreate(out *outcome, immutable error) (map[string]any, error) {
	ctx, cancel := a.afresh()
	defer cancel()
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	switch {
	case kube.IsGone(err):
		return a.create(ctx, out)
	case err != nil:
		return nil, err
	}
	u := &unstructured.Unstructured{Object: live}
	if u.GetDeletionTimestamp() != nil {
		return nil, a.leaving()
	}
	if err := a.unlessAnnotated(live); err != nil {
		return nil, err
	}
	if err := a.prove(ctx, u); err != nil {
		return nil, err
	}
	if err := a.anew(live); err != nil {
		return nil, err
	}
	refusal, err := a.keepsFromRecreating(ctx, u, immutable)
	if err != nil {
		return nil, err
	}
	if refusal != "" {
		return nil, a.cannotChange(ctx, immutable, refusal)
	}
	for _, verb := range []localpolicy.Verb{localpolicy.Recreate, localpolicy.Create} {
		if err := a.w.m.denied(a.w.ref, a.act(verb)); err != nil {
			return nil, err
		}
	}
	rehearsing, rehearsed := a.afresh()
	defer rehearsed()
	if err := a.rehearse(rehearsing, live, immutable); err != nil {
		return nil, err
	}
	replacing, replaced := a.afresh()
	defer replaced()
	if err := a.replace(replacing, u, immutable); err != nil {
		return nil, err
	}
	a.halfway, a.adopted = true, false
	making, done := a.afresh()
	defer done()
	made, err := a.create(making, out)
	if err == nil && made != nil {
		a.rescale(making, live, made)
	}
	return made, err
}

// rescale gives a new object the replicas that a program, or somebody else where an autoscaler has them, had set in the one of before, in its name, so that they are left to it as they
// were, also under a hold that came meanwhile: it is what was there. Where that cannot be done, it is up to the program to set them anew.
func (a *writer) rescale(ctx context.Context, before, made map[string]any) {
	by, replicas := apply.ScaledBy(before), apply.ReplicasOf(before)
	if by == "" {
		replicas, by = apply.ReplicasOfOthers(before)
	}
	if replicas < 0 || a.takes || replicas == apply.ReplicasOf(made) || apply.ScaledBy(before) == "" && !a.targeted(ctx) {
		return
	}
	send := func(ctx context.Context, request func(context.Context) error) error {
		return a.w.write(ctx, a.act(localpolicy.Update), request)
	}
	if a.created && a.w.heldThere(a.id) == "" && a.w.m.denied(a.w.ref, a.act(localpolicy.Update)) == nil {
		send = a.w.m.finish
	}
	uid := (&unstructured.Unstructured{Object: made}).GetUID()
	err := send(ctx, func(ctx context.Context) error {
		return a.w.m.client.Scale(ctx, a.resource, a.namespace, a.id.Name, uid, replicas, by)
	})
	if err != nil {
		a.w.log.Warn("object was made again with the replicas that its module lists", "object", a.id.String(), "before", replicas, "set_by", by, "error", a.explain(ctx, err))
	}
}

// anew works out what is to be made in place of a live object: all that the module lists, with the values that a revision does not
// change.
func (a *writer) anew(live map[string]any) error {
	if a.exempt == nil {
		return nil
	}
	left, err := a.desired.Leave(live, apply.Leaving{Exempt: a.exempt.Updating(), Verb: a.verb, Record: a.record})
	a.made = left.Desired
	return err
}

// prove notes that an intent became the live object, and that the answer was lost with the agent that wrote it: an object that
// carries the module's proof is as much the module's as one whose answer came. An error says that the object is another hub's, or that this is not known.
func (a *writer) prove(ctx context.Context, u *unstructured.Unstructured) error {
	if a.record == nil {
		return nil
	}
	if a.record.State != plan.Intent {
		return a.unlessServed(ctx, u.Object)
	}
	claimant, err := a.w.m.claimantOf(ctx, a.w.ref, u.GetLabels())
	if err != nil {
		return err
	}
	if !claimant.After(&a.record.Record).Proven(a.liveID(), u.GetLabels(), u.GetAnnotations(), apply.ProofOf(u.GetManagedFields())) {
		return nil
	}
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		if r.State != plan.Intent {
			return false
		}
		r.State, r.UID, r.Aggregated = plan.Owned, string(u.GetUID()), a.w.m.mapper.Aggregated(a.resource)
		return true
	})
	a.record = a.w.m.inventory.Get(a.id)
	return nil
}

// keepsFromRecreating is what the rules say against it; empty: nothing. What would go with the object is asked last, in replace.
func (a *writer) keepsFromRecreating(ctx context.Context, u *unstructured.Unstructured, immutable error) (string, error) {
	r, err := a.recreation(ctx, u)
	if err != nil {
		return "", err
	}
	if refusal := plan.Recreate(a.id, r); refusal != "" {
		return refusal, nil
	}
	return a.changedByAdmission(ctx, u, immutable)
}

// changedByAdmission is why an object is not made again for what not its module, but a webhook or a policy changes in every update of it; empty: it is
// the module. What is new in the module could be changed in place, and the new object would be no other. Where the question has no answer, as of a webhook
// that fails just then, nothing is made again but for what the module lists.
func (a *writer) changedByAdmission(ctx context.Context, u *unstructured.Unstructured, immutable error) (string, error) {
	err := a.w.m.client.Touch(ctx, a.resource, a.namespace, a.id.Name, u.GetUID())
	if err == nil || kube.IsGone(err) {
		return "", nil
	}
	desired, unknown := a.desired.Object()
	if unknown != nil || apply.ChangesImmutable(immutable, desired, u.Object) {
		return "", unknown
	}
	if !apply.IsImmutable(err) {
		return "", err
	}
	return "nothing was deleted, as that is no change of the module: admission (a mutating webhook or policy) changes it in every update of the object", nil
}

// recreation is what the policies and the live object say. One that carries the label of a hub for which another agent works is that one's, whatever the
// module may take.
func (a *writer) recreation(ctx context.Context, u *unstructured.Unstructured) (plan.Recreation, error) {
	r := plan.Recreation{Policies: a.policies, Policy: *a.policy,
		Ours: a.record != nil && a.record.State == plan.Owned && a.record.UID == string(u.GetUID())}
	if c := metav1.GetControllerOf(u); c != nil {
		r.Controller = c.Kind + " " + c.Name
	}
	whenDeleted, _, _ := unstructured.NestedString(u.Object, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
	r.ClaimsGo = whenDeleted == "Delete"
	claimant, err := a.w.m.claimantOf(ctx, a.w.ref, u.GetLabels())
	hub := u.GetLabels()[fleet.HubLabel]
	if err != nil || !r.Ours || hub == "" || claimant.After(&a.record.Record).Marked(u.GetLabels()) {
		return r, err
	}
	r.Elsewhere, err = a.w.m.hubs.serves(ctx, &a.w.m.o, hub)
	return r, err
}

// unlessGoesAlong is an error where something would go with the object.
func (a *writer) unlessGoesAlong(ctx context.Context, u *unstructured.Unstructured, immutable error) error {
	inside, err := a.w.inside(ctx, a.record.Record, a.resource)
	if err != nil {
		return err
	}
	followers, err := a.w.followers(ctx, a.record.Record, u.Object)
	if err != nil {
		return err
	}
	if unknown := a.w.ownedUnknown(ctx, 0); len(unknown) > 0 {
		return &apply.Failure{Reason: apply.ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable,
			Message: a.id.String() + ": is not made again before it is known what would go with it; not known yet of: " + plan.Names(unknown)}
	}
	bound := a.w.m.together.bindings(ctx, aroundOf(a.record.Record), func(ctx context.Context) bindings {
		return a.w.m.bindings(ctx, &descent{m: a.w.m}, a.w.m.spared, []plan.Record{a.record.Record})
	})
	if err := bound.doubt(a.id); err != nil {
		f := *apply.Explain(a.id, err) // others have the same
		return &f
	}
	r, err := a.recreation(ctx, u)
	if err != nil {
		return err
	}
	r.Inside = slices.Concat(inside, followers, bound.names(string(u.GetUID())))
	if refusal := plan.Recreate(a.id, r); refusal != "" {
		return a.cannotChange(ctx, immutable, refusal)
	}
	return nil
}

// cannotChange is the failure of an object that stays as it is, and why it was not made again.
func (a *writer) cannotChange(ctx context.Context, immutable error, why string) *apply.Failure {
	f := a.explain(ctx, immutable)
	f.Message = fmt.Sprintf("%s: a field cannot be changed in place; %s: %s", a.id, why, f.Detail)
	return f
}

func (a *writer) leaving() *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonTerminating, Transient: true, Kind: fleet.ErrPrecondition,
		Message: a.id.String() + ": is being deleted; it is created again when it is gone"}
}

// rehearse has the API server judge the new object, without storing it, and looks for what a dry run does not find out.
func (a *writer) rehearse(ctx context.Context, live map[string]any, immutable error) error {
	body, err := a.made.Rehearsal(a.w.m.marks(a.w.ref, a.liveID()), live)
	if err != nil {
		return err
	}
	err = a.w.m.client.Rehearse(ctx, a.resource, a.namespace, a.id.Name, body)
	if err != nil && !apply.RoomInQuota(err, a.resource) {
		return a.wouldBeRefused(ctx, immutable, err)
	}
	if err != nil {
		if err := a.roomInAll(ctx, immutable); err != nil {
			return err
		}
	}
	if !apply.IsService(a.id) {
		return nil
	}
	service, err := a.made.Object()
	if err != nil {
		return err
	}
	taken, err := a.w.m.client.AddressTaken(ctx, service)
	if err != nil {
		return a.wouldBeRefused(ctx, immutable, err)
	}
	if taken != "" {
		return a.cannotChange(ctx, immutable, "nothing was deleted, as the new one would be refused: "+taken)
	}
	return nil
}

// roomInAll is nil if no other quota is exceeded than the one that is only full.
func (a *writer) roomInAll(ctx context.Context, immutable error) error {
	crowded, err := a.w.m.client.Crowded(ctx, a.resource, a.namespace)
	if err != nil {
		return a.wouldBeRefused(ctx, immutable, err)
	}
	if crowded != "" {
		return a.cannotChange(ctx, immutable, "nothing was deleted, as the new one would be refused: "+crowded)
	}
	return nil
}

// wouldBeRefused is the failure of an object that stays because the new one would not be taken, or because that could not
// be asked now.
func (a *writer) wouldBeRefused(ctx context.Context, immutable, err error) error {
	refused := a.explain(ctx, err)
	if refused.Transient {
		return refused
	}
	return a.cannotChange(ctx, immutable, "nothing was deleted, as the new one would be refused: "+strings.TrimPrefix(refused.Message, a.id.String()+": "))
}

// replace deletes exactly the object that was judged, unless something would go with it, and waits until it is gone. Before that it notes durably
// that what is wanted is not there, so that whoever comes after a crash creates it, and nobody else counts as having deleted it.
func (a *writer) replace(ctx context.Context, u *unstructured.Unstructured, immutable error) error {
	if err := a.unlessGoesAlong(ctx, u, immutable); err != nil {
		return err
	}
	a.doubt()
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		was := r.Taking
		r.Taking = true
		return !was
	})
	if err := a.keepValues(); err != nil {
		return err
	}
	if err := a.w.m.inventory.Sync(ctx); err != nil {
		return err
	}
	a.w.log.Info("object deleted to be recreated", "object", a.id.String(), "uid", u.GetUID(), "because", a.explain(ctx, immutable).Detail)
	err := a.remove(ctx, u)
	if err != nil && !kube.IsGone(err) {
		return err
	}
	for wait := firstGoneWait; ; wait = min(2*wait, maxGoneWait) {
		now, err := a.w.m.client.GetMeta(ctx, a.resource, a.namespace, a.id.Name)
		if kube.IsGone(err) || err == nil && now.UID != u.GetUID() {
			return nil
		}
		if wait >= maxGoneWait {
			return a.leaving()
		}
		if err := backoff.Wait(ctx, wait); err != nil {
			return err
		}
	}
}

// keepValues notes the values that the new object is to have by a policy: the old one may take its time to go, and the agent may not
// live to make the new one.
func (a *writer) keepValues() error {
	if a.exempt == nil || len(a.exempt.OnUpdate) == 0 {
		return nil
	}
	made, err := a.made.Object()
	if err != nil {
		return err
	}
	kept, err := json.Marshal(made)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		x := apply.Exempt{}
		if r.Exempt != nil {
			x = *r.Exempt
		}
		x.Text, x.Body, x.Kept = a.exempt.Text, fleet.Digest{}, kept
		r.Exempt = &x
		return true
	})
	return nil
}

// How long a write waits for an object to go. One that takes longer is created when its end is seen.
const (
	firstGoneWait = 20 * time.Millisecond
	maxGoneWait   = time.Second
)
