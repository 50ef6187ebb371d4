package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// moduleStatus counts exactly: every cluster that has the module, or that its placement takes, is in one of healthy,
// progressing, bad and away.
func (a *API) moduleStatus(r overview, ref fleet.ModuleRef) *towlinev1.ModuleStatus {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok {
		return nil
	}
	s := &towlinev1.ModuleStatus{ObservedGeneration: rec.GetModule().GetMetadata().GetGeneration()}
	s.Revision = record.NewestNumber(r, ref)
	s.SucceededRevision = rollouts.Standing(r, ref)
	newest := rollouts.Last(r, ref)
	_, some := rollouts.WentBack(r, ref, newest)
	s.RolledBack = rollouts.RolledBack(r, ref, newest) && !some
	countClusters(r, ref, s)
	state := a.describeRollout(r, ref, rec, newest, s)
	record.EachHold(r, func(h *towlinev1.Hold, e store.Entry) {
		if record.HoldModule(h) == ref.String() {
			s.Holds = append(s.Holds, showHold(h, e))
		}
	})
	eachAnnotation(r, r.sums, &towlinev1.ObjectFilter{Project: ref.Project, Module: ref.Name}, a.now(), func(h *towlinev1.Hold) {
		s.Holds = append(s.Holds, h)
	})
	s.Conditions = conditions(rec, s, state)
	if err := wire.CheckFieldPaths(rec.GetModule().GetSpec()); err != nil && rec.GetDeleting() == "" {
		s.Conditions = append(s.Conditions, &towlinev1.Condition{Type: fleet.ConditionSpecValid, Status: fleet.ConditionFalse, Reason: fleet.ReasonInvalidSpec,
			Message: err.Error(), ObservedGeneration: s.ObservedGeneration})
	}
	s.Follow = a.followStatus(r, ref, rec, s)
	if s.Follow != nil && rec.GetDeleting() == "" {
		s.Conditions = append(s.Conditions, followingCondition(r, s))
	}
	return s
}

// countClusters fills in the counts. Who has nothing of the module yet is on its way, or away.
func countClusters(r overview, ref fleet.ModuleRef, s *towlinev1.ModuleStatus) {
	newest := s.Revision
	if s.RolledBack {
		newest = s.SucceededRevision
	}
	m, _ := r.sums.Module(ref)
	s.Clusters, s.Objects, s.Drift, s.Unjudged = int32(m.Clusters), int32(m.Objects), int32(m.Drifted), int32(m.Unjudged)
	s.Healthy, s.Progressing, s.Bad, s.Away = int32(m.Healthy), int32(m.Progressing), int32(m.Bad), int32(m.Away+m.Ahead)
	s.Ahead = int32(m.Ahead)
	s.Updated, s.HeldClusters = int32(m.Updated(newest)), int32(r.heldClusters(ref))
	unassigned := r.sums.Unassigned(ref)
	s.Clusters += int32(unassigned.Seen + unassigned.Away)
	s.Progressing += int32(unassigned.Seen)
	s.Unassigned = int32(unassigned.Seen)
	s.Away += int32(unassigned.Away)
}

// describeRollout fills in the newest rollout and returns its bare state.
func (a *API) describeRollout(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, newest *storev1.RolloutRecord, s *towlinev1.ModuleStatus) rollout.RunState {
	var state rollout.RunState
	if newest != nil {
		x := a.awaited(r, ref, newest)
		state = rollout.RunState(x.GetStatus().GetState())
		s.Rollout, s.RolloutState = x.GetId(), x.GetStatus().GetState()
		s.RolloutStage, s.RolloutDeferred = x.GetStatus().GetCurrentStage(), x.GetStatus().GetDeferred()
		s.RolledBackBy = x.GetStatus().GetRolledBackBy()
		s.RolloutReason, s.RolloutFacts = x.GetStatus().GetReason(), x.GetStatus().GetFacts()
		s.Since = x.GetStatus().GetStarted()
		if x.GetStatus().GetEnded() != nil {
			s.Since = x.GetStatus().GetEnded()
		}
	}
	if damaged, _ := rollouts.Damaged(r, ref); damaged != 0 {
		state, s.RolloutState, s.RolloutReason, s.RolloutFacts = stateDamaged, stateDamaged, fleet.ReasonDamagedRollout, nil
		s.Rollout = fleet.RolloutID{Module: ref, Number: damaged}.String()
	}
	if rec.GetDeleting() != "" {
		state, s.RolloutState, s.RolloutReason, s.RolloutFacts = fleet.ReasonDeleting, fleet.ReasonDeleting, "", nil
		if names := deletedDependents(r, ref); len(names) > 0 && rec.GetDeleting() != fleet.DeleteOrphan {
			s.RolloutReason, s.RolloutFacts = rollout.ReasonDependentsFirst, &towlinev1.Facts{Names: names}
		}
		if rec.GetDeleting() == fleet.DeleteOrphan {
			s.RolloutFacts = &towlinev1.Facts{Code: fleet.DeleteOrphan}
		}
		s.Since = rec.GetModule().GetMetadata().GetDeletionTimestamp()
	}
	return state
}

// conditions state Ready: the newest rollout succeeded, and every cluster that has the module is healthy or away, but not
// every one away: what cannot be seen is not Ready (DESIGN §1.11). Nor is it while one has seen a newer store than this one: that has
// something else than what the rollout of this store came to. Clusters that have nothing of it yet, because they are
// cordoned, say, are told and keep it from nothing: no rollout waits for them. Nor do they say how it stands where it is. One that
// is nowhere, as where its placement selects no cluster, is not Ready. Of what clusters came to after the rollout nobody noted when it
// was; each tracker says since when its cluster stands as it does.
func conditions(rec *storev1.ModuleRecord, s *towlinev1.ModuleStatus, state rollout.RunState) []*towlinev1.Condition {
	moving := s.Progressing - s.Unassigned
	c := &towlinev1.Condition{Type: "Ready", Status: fleet.ConditionFalse, Reason: string(state),
		ObservedGeneration: s.ObservedGeneration, LastTransitionTime: s.Since}
	switch {
	case rec.GetDeleting() != "":
		c.Reason = fleet.ReasonDeleting
	case s.Bad > 0:
		c.Reason = fleet.ReadyDegraded
	case state == rollout.Succeeded && moving > 0:
		c.Reason = string(rollout.Progressing)
	case state == rollout.Succeeded && s.Ahead > 0:
		c.Status, c.Reason = fleet.ConditionUnknown, fleet.ReadyRegressed
	case state == rollout.Succeeded && s.Away > 0 && s.Away+s.Unassigned == s.Clusters:
		c.Status, c.Reason = fleet.ConditionUnknown, fleet.ReadyAway
	case state == rollout.Succeeded && s.Unassigned == s.Clusters:
		c.Reason = fleet.ReadyNowhere
	case state == rollout.Succeeded:
		c.Status, c.Reason = fleet.ConditionTrue, string(rollout.Succeeded)
	}
	if c.Reason != string(state) {
		c.LastTransitionTime = nil
	}
	return []*towlinev1.Condition{c}
}

// DeleteModule marks the module; the leader takes it from the clusters.
func (a *API) DeleteModule(ctx context.Context, req *towlinev1.DeleteModuleRequest) (*towlinev1.DeleteModuleResponse, error) {
	resp, err := a.deleteModule(ctx, req, nil)
	if err != nil {
		a.endsRefused(ctx, req)
	}
	return resp, err
}

func (a *API) deleteModule(ctx context.Context, req *towlinev1.DeleteModuleRequest, by *author) (*towlinev1.DeleteModuleResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkBatch(req); err != nil {
		return nil, err
	}
	resp := &towlinev1.DeleteModuleResponse{}
	may := func(r store.Reader) error { return a.mayBeDeleted(r, ref, req) }
	err = a.o.Store.View(ctx, 0, may)
	if errors.Is(err, fleet.ErrPrecondition) { // what depended on it may have been deleted just now, as the caller was told
		var told int64
		if told, err = a.o.Store.Barrier(ctx); err == nil {
			err = a.o.Store.View(ctx, told, may)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := a.describeDelete(ctx, ref, req, resp); err != nil || req.GetDryRun() {
		return resp, err
	}
	resp.Revision, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		if err := by.may(w); err != nil {
			return err
		}
		if err := a.markDeleted(ctx, w, ref, req, by); err != nil {
			return err
		}
		a.endsWith(ctx, w, req)
		return nil
	})
	return resp, err
}

// markDeleted has the leader take a module from the clusters.
func (a *API) markDeleted(ctx context.Context, w store.Writer, ref fleet.ModuleRef, req *towlinev1.DeleteModuleRequest, by *author) error {
	policy := deletionOf(req)
	rec, damaged, ok := moduleRecord(w, ref)
	if !ok {
		return noModule(ref)
	}
	if err := by.mayWrite(ref, damaged); err != nil {
		return err
	}
	if err := a.mayBeDeleted(w, ref, req); err != nil || rec.GetDeleting() == policy {
		return err
	}
	if req.GetOrphan() { // a cluster that is told to delete all in this moment would not hear that these are to stay
		w.Unchanged(store.ClusterPrefix)
	}
	if err := a.prunesNot(w, ref, rec, by); err != nil {
		return err
	}
	next := proto.CloneOf(rec)
	record.Delete(w, ref, next, policy)
	meta := next.Module.Metadata
	if meta.DeletionTimestamp == nil {
		meta.DeletionTimestamp = timestamppb.New(a.now())
	}
	meta.ChangedBy, meta.ChangeReason = who(ctx), req.GetReason()
	w.Put(store.ModuleKey(ref), next)
	return nil
}

// sameModule checks that a module is the one of a UID, if it is there and its record can be read; any is one of no UID.
func sameModule(r store.Reader, ref fleet.ModuleRef, uid string) error {
	rec, damaged, ok := moduleRecord(r, ref)
	if !ok || damaged {
		return nil
	}
	return fleet.SameUID(ref.Object(), rec.GetModule().GetMetadata().GetUid(), uid)
}

// mayBeDeleted checks what a deletion asks of the module. One that is being deleted so already has another version by that.
func (a *API) mayBeDeleted(r store.Reader, ref fleet.ModuleRef, req *towlinev1.DeleteModuleRequest) error {
	if err := sameModule(r, ref, req.GetUid()); err != nil {
		return err
	}
	if err := a.mayPrune(r, ref, req); err != nil {
		return err
	}
	if err := mayGo(r, ref, req.GetForce()); err != nil {
		return err
	}
	if err := mayStay(r, ref, req); err != nil || req.GetResourceVersion() == 0 {
		return err
	}
	if rec, damaged, ok := moduleRecord(r, ref); !ok || damaged || rec.GetDeleting() == deletionOf(req) {
		return nil
	}
	e, _ := r.Get(store.ModuleKey(ref))
	return fleet.SameVersion(ref.Object(), e.ModRevision, req.GetResourceVersion())
}

// mayStay refuses to leave the objects of a module where the agent was told to delete all that it has: an agent that leaves is told one word for
// everything, and does not hear of the module again.
func mayStay(r store.Reader, ref fleet.ModuleRef, req *towlinev1.DeleteModuleRequest) error {
	if !req.GetOrphan() {
		return nil
	}
	for _, c := range record.ClustersOf(r, ref) {
		name := record.Cluster(c).Name
		if c.GetRemoving() == fleet.LeaveDelete && !c.GetRevoked() && record.Has(r, name, ref) {
			return fleet.Forbids(ref.Object(), "module %s: cluster %s is leaving, and its agent deletes all that it has, what this is to leave included; delete the module when the cluster is gone, or have that keep everything: towline cluster remove %s --objects=keep",
				ref.Display(), name, name)
		}
	}
	return nil
}

func deletionOf(req *towlinev1.DeleteModuleRequest) string {
	if req.GetOrphan() {
		return fleet.DeleteOrphan
	}
	return fleet.DeleteDelete
}

// describeDelete counts what goes and what stays, by the policies of the revision that each cluster has: the agents go by
// the same.
func (a *API) describeDelete(ctx context.Context, ref fleet.ModuleRef, req *towlinev1.DeleteModuleRequest, resp *towlinev1.DeleteModuleResponse) error {
	all, _, err := a.tracked(ctx, &towlinev1.ObjectFilter{Project: ref.Project, Module: ref.Name}, 0)
	if err != nil {
		return err
	}
	var leaves map[fleet.ClusterName]bool
	first := int64(0)
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		rec, _, ok := moduleRecord(r, ref)
		if !ok {
			return noModule(ref)
		}
		leaves, first, resp.Before = keepAll(r, ref), rec.GetFirstRollout(), rec.GetDeleting()
		return nil
	}); err != nil {
		return err
	}
	resp.Clusters = int32(len(all))
	kept := map[string]int32{}
	for i := range all {
		of, n := resp, kept
		if leaves[all[i].Cluster] {
			of, n = &towlinev1.DeleteModuleResponse{}, map[string]int32{}
		}
		if err := a.countDelete(ctx, &all[i], req.GetOrphan(), n, of); err != nil {
			return err
		}
		switch {
		case of != resp:
			noteLeaving(resp, all[i].Cluster, of, n)
		case record.Unsaid(all[i].Desired, deletionOf(req), first):
			noteTold(resp, all[i].Cluster)
		}
	}
	resp.Keeps = countsByKind(kept)
	return nil
}

// maxLeaving is how many clusters a deletion names in which nothing goes, as they leave with what they have, or that were told another word.
const maxLeaving = 20

// noteTold adds a cluster that the module is to leave by another word already.
func noteTold(resp *towlinev1.DeleteModuleResponse, c fleet.ClusterName) {
	resp.ToldClusters++
	if len(resp.Told) < maxLeaving {
		resp.Told = append(resp.Told, string(c))
	}
}

// noteLeaving adds a cluster that leaves with all that it has of a module, whatever would go by the module's policies.
func noteLeaving(resp *towlinev1.DeleteModuleResponse, c fleet.ClusterName, goes *towlinev1.DeleteModuleResponse, kept map[string]int32) {
	resp.LeavingClusters++
	if len(resp.Leaving) < maxLeaving {
		resp.Leaving = append(resp.Leaving, string(c))
	}
	resp.Left += goes.GetObjects()
	for _, n := range kept {
		resp.Left += n
	}
}

// keepAll are the clusters with a module that leave the fleet with all that they have: an agent that leaves is told one word for everything, and
// one whose identity is revoked is told nothing.
func keepAll(r store.Reader, ref fleet.ModuleRef) map[fleet.ClusterName]bool {
	out := map[fleet.ClusterName]bool{}
	for _, c := range record.ClustersOf(r, ref) {
		if c.GetRemoving() == fleet.LeaveKeep || c.GetRemoving() != "" && c.GetRevoked() {
			out[record.Cluster(c).Name] = true
		}
	}
	return out
}

func countsByKind(n map[string]int32) (out []*towlinev1.KindCount) {
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		out = append(out, &towlinev1.KindCount{Kind: kind, Objects: n[kind]})
	}
	return out
}

// countDelete counts the objects of one cluster. Where they cannot be listed, all that the agent tells of may go: what is damaged keeps no module
// from being deleted.
func (a *API) countDelete(ctx context.Context, t *record.Tracked, orphan bool, kept map[string]int32, resp *towlinev1.DeleteModuleResponse) error {
	goes, stays, err := a.goesAndStays(ctx, t, orphan)
	if isLost(err) {
		goes, stays, err = t.Tracker.Counts.Objects, nil, nil
	}
	if err != nil {
		return err
	}
	resp.Objects += int32(goes)
	for kind, n := range stays {
		kept[kind] += n
	}
	return nil
}

// goesAndStays are how many objects a deletion takes from a cluster, and how many of each kind stay.
func (a *API) goesAndStays(ctx context.Context, t *record.Tracked, orphan bool) (goes int, stays map[string]int32, err error) {
	listed, err := a.listedOf(ctx, *t)
	if err != nil {
		return 0, nil, err
	}
	policies, err := a.policiesOf(ctx, *t)
	if err != nil {
		return 0, nil, err
	}
	used, err := a.usedOf(ctx, *t)
	if err != nil {
		return 0, nil, err
	}
	t.ListExtras()
	goes = t.Unlisted()
	listed.Watched = nil // it stays in any case
	if t.Input.Before != nil {
		listed.Entries = nil // they are not there yet
	}
	entries := map[fleet.ObjectID]fleet.BundleEntry{}
	for _, e := range listed.Entries {
		entries[e.ID] = e
	}
	stays = map[string]int32{}
	for _, row := range tracker.Rows(t.Input, listed) {
		labels := map[string]string{}
		if e, is := entries[row.ID]; is && !row.Extra {
			if labels, err = a.labelsOf(ctx, policies, t.Desired.GetSync().GetValues(), e); err != nil {
				return 0, nil, err
			}
		}
		if orphan || used[row.ID] || plan.Survives(policies, row.ID, labels) {
			stays[row.ID.Kind]++
			continue
		}
		goes++
	}
	return goes, stays, nil
}

// usedOf are the objects that the module only used by the last report, which may be of a revision before: they are no more its own for that.
func (a *API) usedOf(ctx context.Context, t record.Tracked) (map[fleet.ObjectID]bool, error) {
	o := t.Input.Observed
	if o == nil || !slices.ContainsFunc(o.States, func(s fleet.ObjectState) bool { return s.Used }) {
		return nil, nil
	}
	entries, err := a.reportedOf(ctx, t)
	used := map[fleet.ObjectID]bool{}
	for i := range min(len(entries), len(o.States)) {
		used[entries[i].ID] = o.States[i].Used
	}
	return used, err
}

// policiesOf are those of the sync; none once a tombstone has taken its place.
func (a *API) policiesOf(ctx context.Context, t record.Tracked) ([]fleet.Policy, error) {
	digest := record.Digest(t.Desired.GetSync().GetPolicies())
	if digest.IsZero() {
		return nil, nil
	}
	set, err := a.policySet(ctx, t.Module, digest)
	return set.Policies, err
}

func (a *API) policySet(ctx context.Context, ref fleet.ModuleRef, digest fleet.Digest) (fleet.PolicySet, error) {
	content, err := a.o.Store.Blobs().Get(ctx, digest)
	if err != nil {
		return fleet.PolicySet{}, fmt.Errorf("module %s: policies: %w", ref.Display(), err)
	}
	return wire.PolicySetFromContent(content)
}

// labelsOf reads the labels that an object has with these values, if a policy asks for them.
func (a *API) labelsOf(ctx context.Context, policies []fleet.Policy, values map[string]string, e fleet.BundleEntry) (map[string]string, error) {
	if !slices.ContainsFunc(policies, func(p fleet.Policy) bool { return p.Match.Labels != nil }) {
		return nil, nil
	}
	content, err := a.o.Store.Blobs().Get(ctx, e.Digest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	labels, err := manifest.Labels(content, values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	return labels, nil
}
