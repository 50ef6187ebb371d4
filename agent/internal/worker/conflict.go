package worker

import (
	"context"
	"fmt"
	"maps"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
)

// update applies to the object that we know: without force first, then with force if all that conflicts is ours, or a
// policy says so.
func (a *writer) update(ctx context.Context, ours *apply.PathSet, g apply.Guard) (map[string]any, error) {
	live, err := a.put(ctx, g, apply.ApplyOptions{Strict: true})
	conflicts := apply.FieldConflicts(err)
	if len(conflicts) == 0 {
		return live, err
	}
	if err := a.judge(ctx, conflicts, ours); err != nil {
		return nil, err
	}
	if g.ResourceVersion == "" && !a.forces() {
		return a.updateVersion(ctx, ours, g)
	}
	return a.put(ctx, g, apply.ApplyOptions{Strict: true, Force: true})
}

// updateVersion is update of the version that is live now: an apply with force takes whatever others have, also what one of
// them took since the conflicts were judged. An object that is written all the time is left for a later attempt.
func (a *writer) updateVersion(ctx context.Context, ours *apply.PathSet, g apply.Guard) (map[string]any, error) {
	for attempt := 0; ; attempt++ {
		live, err := a.w.m.client.GetMeta(ctx, a.resource, a.namespace, a.id.Name)
		if a.isGone(ctx, err) {
			return a.put(ctx, g, apply.ApplyOptions{Strict: true}) // whose answer says so
		}
		if err != nil {
			return nil, err
		}
		if err := a.unlessNoted(ctx, live); err != nil {
			return nil, err
		}
		at := g
		at.ResourceVersion = live.ResourceVersion
		answer, err := a.update(ctx, ours, at)
		if !kube.Is(err, kube.Conflict) || len(apply.FieldConflicts(err)) > 0 || attempt == versionTries || string(live.UID) != g.UID {
			return answer, err
		}
	}
}

// mine are fields that are ours, with those that a policy leaves to others until a revision has its way.
func (a *writer) mine(ours *apply.PathSet) map[string]bool {
	out := ours.Paths()
	if a.record != nil && a.record.Exempt != nil {
		maps.Copy(out, a.record.Exempt.Left.Paths())
	}
	return out
}

// judge says which of the conflicts keeps us from applying with force; nil: none does.
func (a *writer) judge(ctx context.Context, conflicts []apply.FieldConflict, ours *apply.PathSet) error {
	mine := a.mine(ours)
	for _, key := range a.text {
		mine[".data."+key] = true
	}
	for _, c := range conflicts {
		scaled := apply.IsAutoscaler(c.Manager, c.Subresource)
		if scaled && c.Field != ".spec.replicas" {
			settled, err := a.unscaled(ctx, c.Field)
			if err != nil {
				return err
			}
			if settled {
				continue
			}
		}
		switch {
		case c.Field == ".spec.replicas" && scaled:
			a.drop = !a.takes
		case c.Field == ".spec.replicas" && !a.takes && !a.drop && a.targeted(ctx):
			a.drop = true
		case mine[c.Field]:
		case a.policy.Conflict == fleet.ConflictForce:
			if err := a.mayForce(); err != nil {
				return err
			}
		default:
			if f := a.contestedUnless(ctx, c, ours); f != nil {
				return f
			}
		}
	}
	return nil
}

// contested says who has a field that the module wants, and what is there.
func (a *writer) contested(ctx context.Context, c apply.FieldConflict) *apply.Failure {
	return a.contestedUnless(ctx, c, nil)
}

// contestedUnless is contested; nil where the field is in a list or a map that is ours as a whole.
func (a *writer) contestedUnless(ctx context.Context, c apply.FieldConflict, ours *apply.PathSet) *apply.Failure {
	field := a.field(c.Field)
	f := &apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrConflict, Field: field, By: c.Manager, Message: fmt.Sprintf(
		"%s: field %s is managed by %q; take it out of the module, or set the policy conflict: Force", a.id, field, c.Manager)}
	desired, err := a.desired.Object()
	if err != nil {
		return f
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if err != nil {
		return f
	}
	if at, found := apply.FieldNamed(live, c.Manager, c.Field); found {
		if ours.Holds(at) {
			return nil
		}
		a.w.valuesOf(a.liveID(), a.shows(), at, at.In(desired)).tell(f)
	}
	return f
}

// field names one of the object's as people may read it.
func (a *writer) field(name string) string {
	return a.w.hiddenIn(a.liveID()).with(a.hidden).field(name)
}

// mayForce is why the cluster does not let anything be taken from who has it; nil: it does.
func (a *writer) mayForce() error { return a.w.m.denied(a.w.ref, a.act(localpolicy.Force)) }

// forces reports that what conflicts is taken: the module's policy says so, and the cluster lets it.
func (a *writer) forces() bool {
	return a.policy.Conflict == fleet.ConflictForce && a.mayForce() == nil
}
