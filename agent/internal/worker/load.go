package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
)

// retarget goes over to a new target.
func (w *worker) retarget(ctx context.Context, t target, now time.Time) {
	old := w.cur
	w.cur = t
	w.yields = yieldsOf(t.sync)
	w.doomed.Store(nil)
	if t.kind != targetTombstone { // what a removal left, a module that is put again may take up
		w.m.inventory.ForgetLeft(func(ref fleet.ModuleRef) bool { return ref != w.ref })
	}
	same := old.kind == targetSync || old.kind == targetStray
	same = same && (t.kind == targetSync || t.kind == targetStray) && w.loadError == nil && old.sync.Bundle == t.sync.Bundle &&
		old.sync.Policies == t.sync.Policies && valuesDigest(old.sync.Values) == valuesDigest(t.sync.Values)
	w.pruning = w.pruning.before(t.kind, same && old.repeated(t))
	if !same {
		w.traced.end(reasonSuperseded, now)
		w.traced = nil
	}
	w.started = w.continues(old, t, same)
	if t.kind != targetSync && t.kind != targetStray {
		w.later.Store(nil)
	}
	switch {
	case t.kind == targetNone, t.kind == targetTombstone, t.kind == targetUnlisted:
		w.items, w.byID, w.unsure, w.loadError = nil, map[fleet.ObjectID]*item{}, nil, nil
		w.setForeign(nil)
		w.bindsBy(nil)
		w.unwant()
		w.releaseSingles()
		w.status.reset()
		if t.kind != targetUnlisted {
			w.end(ctx)
		}
		if t.kind == targetNone {
			w.releaseKinds(nil)
			w.healthRules = nil
			w.m.rules.set(w.ref, nil)
			if err := w.unbind(ctx); err != nil {
				w.log.Warn(notForgotten, "error", err)
			}
			w.m.inventory.Succeed(w.ref, 0, func(fleet.ObjectID) bool { return true })
		}
	case same:
		for _, it := range w.items {
			it.look = true
		}
		w.clearYielded(old.sync)
		w.succeed()
	default:
		w.corrections = 0
		w.loadTries = 0
		w.beginTrace(t, now)
		w.load(ctx, now)
		w.traced.loaded(now, w.loadError)
		w.begin(now)
	}
	w.pruning.touched = true
}

// repeated reports that the next target says nothing new of the module: the cluster was given something of others.
func (t target) repeated(next target) bool {
	return t.kind == next.kind && t.hold == next.hold && t.lineage == next.lineage && slices.Equal(t.held, next.held) &&
		slices.Equal(t.untaken, next.untaken) && bytes.Equal(assemble.AppendSync(nil, &t.sync), assemble.AppendSync(nil, &next.sync))
}

// begin says that a sync that is not like the one before is begun; report says when it is applied.
func (w *worker) begin(now time.Time) {
	w.begun = now
	w.log.Info("sync begun", "revision", w.cur.sync.Revision, "generation", w.cur.sync.Generation, "objects", len(w.items))
}

// unwant ends the wait for objects of other modules that this one does not list any more.
func (w *worker) unwant() { w.m.inventory.Unwant(w.ref, w.desires) }

const maxLoadRetry = 30 * time.Second

// load reads the sync's bundle and policies and makes the items.
func (w *worker) load(ctx context.Context, now time.Time) {
	w.loadError = nil
	if err := w.read(ctx, now); err != nil {
		w.loadError = &apply.Failure{Reason: apply.ReasonContent, Message: err.Error(), Kind: fleet.ErrNotFound}
		w.loadTries++
		w.loadRetry = now.Add(min(time.Second<<min(w.loadTries, 5), maxLoadRetry))
	}
}

func (w *worker) read(ctx context.Context, now time.Time) error {
	s := w.cur.sync
	bundle, err := w.m.o.Contents.Bundle(s.Bundle)
	if err != nil {
		return fleet.Errorf(fleet.ErrNotFound, "bundle %s is not here: %v", s.Bundle.Short(), err)
	}
	if len(bundle.Entries) != s.Objects {
		return fleet.Errorf(fleet.ErrCorrupt, "bundle %s has %d objects, not %d", s.Bundle.Short(), len(bundle.Entries), s.Objects)
	}
	var set fleet.PolicySet
	if !s.Policies.IsZero() {
		if set, err = w.m.o.Contents.Policies(s.Policies); err != nil {
			return fleet.Errorf(fleet.ErrNotFound, "policies %s are not here: %v", s.Policies.Short(), err)
		}
	}
	if err := w.judgeBy(set.HealthRules); err != nil {
		return err
	}
	old := w.byID
	w.policies, w.how, w.values = set.Policies, set.Substitution, readingDigest(s.Values, set.Substitution)
	w.items = make([]*item, 0, len(bundle.Entries))
	w.byID = make(map[fleet.ObjectID]*item, len(bundle.Entries))
	shared, renews := map[fleet.Rules]*treatment{}, w.m.inventory.Renews(w.ref, w.listing())
	for i, e := range bundle.Entries {
		e.ID = manifest.ExpandID(e.ID, s.Values)
		it := &item{ordinal: i, entry: e, look: true, uncounted: set.Uncounts(bundle.Entries[i].ID)}
		w.place(it)
		policy, err := w.policyOf(e, s.Values)
		if err != nil {
			return err
		}
		if it.treatment = shared[policy.Rules()]; it.treatment == nil {
			if it.treatment, err = treat(policy); err != nil {
				return err
			}
			shared[policy.Rules()] = it.treatment
		}
		it.renewed = renews && it.policy.Drift != fleet.DriftCorrect && !it.policy.Reads()
		it.want = apply.WantDigest(e.Digest, w.values, it.exempt.Name())
		if err := refersTo(it, set.Bindings, w.m.o.Contents, set.Substitution); err != nil {
			return err
		}
		if before := old[it.entry.ID]; before != nil && before.rare != nil {
			it.rare = &rare{history: before.rare.history}
		}
		w.items = append(w.items, it)
	}
	w.setForeign(foreignOf(set.Watch, s.Values))
	w.bindsBy(set.Bindings)
	w.protected = w.protections()
	w.awaitWaves(set.Waves)
	w.status.reset()
	w.useKinds(ctx, now)
	w.releaseSingles()
	w.unwant()
	w.succeed()
	return nil
}

func (w *worker) listing() apply.Listing {
	return apply.Listing{Lineage: w.cur.sync.Lineage, Revision: w.cur.sync.Revision, Bundle: w.cur.sync.Bundle}
}

// succeed notes under which revision what the sync does not list was listed last.
func (w *worker) succeed() { w.m.inventory.Succeed(w.ref, w.cur.sync.Revision, w.desires) }

// treatment is what the policies say of an object together. It is shared by many, and never changed.
type treatment struct {
	policy *fleet.Policy
	exempt *plan.Exempt // nil: nothing is left to others
}

func treat(policy fleet.Policy) (*treatment, error) {
	policy, exempt, err := plan.Exempts(policy)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	policy = plan.Effective(policy)
	return &treatment{policy: &policy, exempt: exempt}, nil
}

// policyOf resolves the policies for an object as it is with these values; its labels are read only if a policy asks for them.
func (w *worker) policyOf(e fleet.BundleEntry, values map[string]string) (fleet.Policy, error) {
	var labels map[string]string
	if slices.ContainsFunc(w.policies, func(p fleet.Policy) bool { return p.Match.Labels != nil }) {
		content, err := w.m.o.Contents.Object(e.Digest)
		if err != nil {
			return fleet.Policy{}, fleet.Errorf(fleet.ErrNotFound, "%s: content %s is not here: %v", e.ID, e.Digest.Short(), err)
		}
		if labels, err = manifest.Labels(content, values); err != nil {
			return fleet.Policy{}, fleet.Errorf(fleet.ErrCorrupt, "%s: %v", e.ID, err)
		}
	}
	return fleet.Resolve(w.policies, e.ID, labels), nil
}

// readingDigest names what content is read with. Without Substitution it is that of the values alone, by which what agents of before
// applied is known.
func readingDigest(values map[string]string, how *fleet.Substitution) fleet.Digest {
	out := valuesDigest(values)
	if how == nil {
		return out
	}
	text, _ := json.Marshal(how) // of text and a flag, which always can be written
	return fleet.DigestOf(append(out.Bytes(), text...))
}

// valuesDigest names a set of values.
func valuesDigest(values map[string]string) fleet.Digest {
	if len(values) == 0 {
		return fleet.Digest{}
	}
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	slices.Sort(names)
	var b []byte
	for _, n := range names {
		b = append(append(append(append(b, n...), 0), values[n]...), 0)
	}
	return fleet.DigestOf(b)
}
