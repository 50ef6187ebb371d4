package worker

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// erase looks at the live object and removes it if it is ours. Only a look that finds it gone forgets it.
func (e *eraser) erase(ctx context.Context, r plan.Record, release bool) erased {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	for attempt, busy := 0, 0; ; attempt++ {
		res := e.kinds[kindOf(r)].Resource
		got, again := e.attempt(ctx, r, res, release)
		if errors.As(got.missed, &later{}) {
			if busy++; busy == maxBusy {
				return erased{record: r, fail: apply.Explain(r.ID, got.missed)}
			}
			if !release {
				e.rebound.Store(r.UID, e.w.m.bindings(ctx, &descent{m: e.w.m}, e.staying, []plan.Record{r}))
			}
			attempt = -1
			continue
		}
		if again && attempt == 3 { // it may be something else than what changes it
			got.leaving.message = "is looked at again, for nothing has come of it yet: " + e.w.explain(ctx, res, r.ID, nil, nil, got.missed).Message
		}
		if !again || attempt == 3 {
			return got
		}
	}
}

func (e *eraser) attempt(ctx context.Context, r plan.Record, res apply.Resource, release bool) (out erased, again bool) {
	out.record = r
	if e.unasked(r, res, release, &out) {
		return out, false
	}
	seen, live, err := e.w.see(ctx, res, r)
	if err != nil {
		out.fail = apply.Explain(r.ID, err)
		return out, false
	}
	if why := e.w.annotation(live); why != "" {
		out.leaving = leaving{reason: plan.ReasonHeld, message: why}
		return out, false
	}
	claimant, err := e.w.m.claimantOf(ctx, e.w.ref, seen.Labels)
	if err != nil {
		out.fail = apply.Explain(r.ID, err)
		return out, false
	}
	verdict, rule := plan.Verify(e.in, r, seen, claimant)
	if release && verdict == plan.Delete {
		verdict = plan.Release
	}
	if to, wanted := e.in.WantedBy(r.ID); wanted && to != e.w.ref && (verdict == plan.Delete || verdict == plan.Release) {
		out.gone = e.w.handOver(plan.Handover{Record: r, To: to}) // it came to want it since the plan was made
		return out, false
	}
	var ties []tie
	if verdict == plan.Release {
		if ties, err = e.ties(ctx, r, live); err != nil {
			out.fail = apply.Explain(r.ID, err)
			return out, false
		}
	}
	if verdict == plan.Release && e.left[r.ID] && len(ties) == 0 && e.w.m.freed.rests(r.UID, time.Now()) {
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "is left when it has stayed without its owner for a moment"}
		return out, false
	}
	if verdict == plan.Release && e.in.Tombstone && e.in.Policy != fleet.DeleteOrphan && len(ties) == 0 && !e.goesAlong(live) {
		out.says = leftText(r, seen)
	}
	if verdict == plan.Foreign {
		out.gone, out.lost = true, &vanished{r, res, e.stays(r, seen, claimant)}
		return out, false
	}
	if verdict == plan.Gone && e.w.m.late.mayLand(r.ID, time.Now()) {
		out.leaving = leaving{reason: plan.ReasonRemoving, message: lateText}
		return out, false
	}
	if verdict, done := e.withoutRequest(ctx, r, res, seen, verdict, rule, &out); !done {
		return e.request(ctx, r, res, seen, live, verdict, ties, out.says)
	}
	return out, false
}

// withoutRequest says what becomes of a record that needs no request, by the look at the live object: out then tells, and it is done.
// Otherwise it returns the verdict that a request is to carry out.
func (e *eraser) withoutRequest(ctx context.Context, r plan.Record, res apply.Resource, seen plan.Seen, verdict plan.Verdict, rule plan.Rule, out *erased) (_ plan.Verdict, done bool) {
	switch verdict {
	case plan.Gone:
		out.gone, out.lost = true, &vanished{record: r, resource: res}
	case plan.Another:
		e.another(r)
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "is another one than the agent had noted; it is looked at again"}
	case plan.Leaving:
		out.leaving = leaving{reason: plan.ReasonTerminating, message: e.w.holdsUp(ctx, res, r, seen)}
	case plan.Stay:
		out.kept = e.keep(r, seen, rule)
	case plan.Delete:
		if e.in.Tombstone && e.noteLabels(r, seen.Labels) { // somebody has put one on it just now
			out.leaving = leaving{reason: plan.ReasonRemoving, message: "has a label by which a policy keeps it; it is looked at again"}
			return verdict, true
		}
		verdict = e.unlessOccupied(ctx, r, res, out)
		return verdict, verdict == plan.Stay
	default:
		return verdict, false
	}
	return verdict, true
}

// unasked says what becomes of a record without a look at the live object, if that is known: out then tells.
func (e *eraser) unasked(r plan.Record, res apply.Resource, release bool, out *erased) bool {
	if l, ok := e.leaving[r.ID]; ok && e.w.seenLeaving(res, r) {
		out.leaving = l
		return true
	}
	if why := fleet.OfAgent(r.ID, e.w.m.o.Namespace); why != "" {
		e.w.log.Warn("object is left as it is", "object", r.ID.String(), "because", why)
		e.w.drop(r)
		out.gone = true
		return true
	}
	if k := e.w.keptByPolicy(r); k != nil && !release {
		out.leaving = leaving{reason: k.Reason, message: k.Message}
		return true
	}
	return false
}

// keep notes that a policy which selects labels of the live object keeps it.
func (e *eraser) keep(r plan.Record, seen plan.Seen, rule plan.Rule) *plan.Kept {
	e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
		was := next.Record
		next.Record = plan.RememberSeen(e.in.Policies, was, seen.Labels)
		return next.Record != was
	})
	return &plan.Kept{Record: r, Rule: rule, Reason: e.in.Keeping(r, seen.Labels), Message: "a policy that selects its labels keeps it"}
}

// unlessOccupied is what is to be done about an object that may be deleted, with regard to what would go along with it:
// delete or release it, or nothing yet (Stay), which out then tells.
func (e *eraser) unlessOccupied(ctx context.Context, r plan.Record, res apply.Resource, out *erased) plan.Verdict {
	kept, wait, err := e.occupied(ctx, r, res)
	switch {
	case err != nil:
		out.fail = apply.Explain(r.ID, err)
		return plan.Stay
	case wait != "":
		out.leaving = leaving{reason: plan.ReasonRemoving, message: wait, others: true}
		return plan.Stay
	case kept != nil && !e.in.Tombstone:
		out.kept = kept
		return plan.Stay
	case kept != nil:
		e.w.log.Info("object stays", "object", r.ID.String(), "because", kept.Message)
		out.says = r.ID.Short() + " (" + kept.Message + ")"
		return plan.Release
	}
	return plan.Delete
}

// request deletes or releases exactly what was seen, then looks whether it is gone.
func (e *eraser) request(ctx context.Context, r plan.Record, res apply.Resource, seen plan.Seen, live *metav1.PartialObjectMetadata, verdict plan.Verdict, ties []tie, says string) (out erased, again bool) {
	out.record = r
	x := act{verb: localpolicy.Delete, id: r.ID}
	if x.id.Namespace = namespaceOf(res, r.ID); verdict == plan.Release {
		x.verb = localpolicy.Release
	}
	var marked string
	err := e.w.writeDecided(ctx, x, func(ctx context.Context) error {
		err := e.w.unlessSuperseded()
		if err == nil {
			marked, err = e.act(ctx, x, r, res, seen, live, verdict, ties)
		}
		return err
	})
	switch {
	case errors.Is(err, errSuperseded), errors.Is(err, errHeld):
		out.leaving = e.unsent(x.id, err)
		return out, false
	case errors.Is(err, errFreed):
		out.leaving = leaving{reason: plan.ReasonRemoving, message: freedText}
		return out, false
	case errors.As(err, &later{}), kube.Is(err, kube.Conflict, kube.Gone, kube.Unserved):
		out.leaving, out.missed = leaving{reason: plan.ReasonRemoving}, err
		return out, true
	case err != nil:
		if out.fail = e.w.explain(ctx, res, r.ID, nil, nil, err); isDenied(out.fail.Reason) {
			out.leaving, out.fail = leaving{reason: out.fail.Reason, message: "kept: " + out.fail.Message}, nil
		}
		return out, false
	}
	generation := ordered(e.in.Age)
	if verdict == plan.Release {
		e.w.log.Info("object released", "object", r.ID.String(), "uid", seen.UID, "generation", generation, "left_to", seen.TakenBy(r),
			"because", "it is to be left without our marks")
		e.released(r, res, seen, marked, says)
		out.gone = true
		return out, false
	}
	e.w.log.Info("object deleted", "object", r.ID.String(), "uid", seen.UID, "resourceVersion", live.ResourceVersion, "generation", generation,
		"because", map[bool]string{true: "its module goes", false: "its module does not list it any more"}[e.in.Tombstone])
	e.w.noteGone(types.UID(seen.UID))
	now, _, err := e.w.see(ctx, res, r)
	if err == nil && (!now.Found || now.UID != seen.UID) {
		out.gone, out.lost = true, &vanished{record: r, resource: res}
	}
	out.leaving = leaving{reason: plan.ReasonTerminating, message: leavingText(now)}
	if now.Found && !now.Terminating {
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "is still there, as if its deletion, which the API server has taken, were none; it is looked at again"}
	}
	return out, false
}

// released ends the record of an object that was let go. A mark that admission left on it is told: who comes later may take the object for ours.
func (e *eraser) released(r plan.Record, res apply.Resource, seen plan.Seen, marked, says string) {
	e.tellLeft(r, res, seen)
	if marked != "" {
		why := "an admission policy or webhook of the cluster put the " + marked + " back on it; exempt towline.dev/ in it, and take that off"
		e.w.log.Warn("object is let go with a mark of ours", "object", r.ID.String(), "uid", seen.UID, "because", why)
		e.tellNotOurs(r, res, why)
		if e.in.Tombstone {
			says = r.ID.Short() + " (" + why + ")"
		}
	}
	if says != "" {
		e.w.m.inventory.Leave(e.w.ref, says) // durable with the record's end
	}
	e.w.drop(r)
}

// unsent is said of an object from which a newer word keeps what was to be sent.
func (e *eraser) unsent(id fleet.ObjectID, err error) leaving {
	newer := leaving{reason: plan.ReasonRemoving, message: "not sent: a newer word of the hub comes first"}
	if errors.Is(err, errHeld) {
		return leaving{reason: plan.ReasonHeld, message: cmp.Or(e.w.heldThere(id), newer.message)}
	}
	return newer
}

// act sends what the verdict says about the object that was seen. ties are the owners that it has to be freed of before. marked is a mark of ours
// that stands on a released one all the same.
func (e *eraser) act(ctx context.Context, x act, r plan.Record, res apply.Resource, seen plan.Seen, live *metav1.PartialObjectMetadata, verdict plan.Verdict, ties []tie) (marked string, err error) {
	namespace := namespaceOf(res, r.ID)
	switch {
	case verdict != plan.Release:
		if err := e.spare(ctx, r.ID, seen.UID); err != nil {
			return "", err
		}
		return "", e.w.takeAway(ctx, x, res, live)
	case len(ties) > 0:
		return "", e.free(ctx, r, ties)
	case seen.TakenBy(r) != "":
		return e.w.m.client.Yield(ctx, res, namespace, live)
	}
	return e.w.m.client.Release(ctx, res, namespace, r.ID.Name, live.UID, live.ResourceVersion)
}

// ordered says by which generation something goes: none orders what goes because its cluster leaves the fleet.
func ordered(a fleet.Age) string {
	if a.Generation == math.MaxUint64 {
		return "none: the cluster leaves"
	}
	return strconv.FormatUint(a.Generation, 10)
}
