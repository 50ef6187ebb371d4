package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// judge says whether what a commit has changed may be, by what the records said right before it.
func (w *interleaved) judge(was, is store.Reader) {
	before, after := all[*storev1.DesiredRecord](was, store.DesiredPrefix), all[*storev1.DesiredRecord](is, store.DesiredPrefix)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] == after[key] {
			continue
		}
		cluster, ref, _ := store.SplitClusterModule(key)
		o := order{w, was, is, cluster, ref, before[key], after[key]}
		w.note("%s: %s -> %s", key, brieflyOf(o.had), brieflyOf(o.has))
		o.judge()
	}
	w.noteRollouts(was, is)
	for key, h := range all[*storev1.HoldRecord](is, store.FreezePrefix) {
		_, module := is.Get(store.ModuleKey(fleet.ModuleRef{Project: h.GetHold().GetProject(), Name: h.GetHold().GetModule()}))
		if c := h.GetHold().GetCluster(); h.GetHold().GetModule() != "" && !module || c != "" && clusterOf(is, fleet.ClusterName(c)) == nil {
			w.finds("%s: holds what is not there: %v", key, h)
		}
	}
	for _, ref := range wovenModules {
		var active []string
		for _, ro := range rollouts.List(is, ref) { // a new module of the name has nothing to do with what that before it left
			if !rollouts.Ended(ro) && rollouts.StateOf(ro) != rollout.Pending {
				active = append(active, fmt.Sprintf("%d %s", ro.GetRollout().GetNumber(), rollouts.StateOf(ro)))
			}
		}
		if len(active) > 1 {
			w.finds("%s: under way at once: %v", ref.Name, active)
		}
	}
}

// order is what a commit has changed of a module in a cluster.
type order struct {
	*interleaved
	was, is  store.Reader
	cluster  fleet.ClusterName
	ref      fleet.ModuleRef
	had, has *storev1.DesiredRecord
}

func brieflyOf(d *storev1.DesiredRecord) string {
	out := ""
	if dead := d.GetTombstone(); dead != nil {
		out += fmt.Sprintf("goes by %d %s hold %t final %t; ", dead.GetGeneration(), dead.GetPolicy(), dead.GetHold(), d.GetFinal())
	}
	if s := d.GetSync(); s != nil {
		out += fmt.Sprintf("r%d of %d hold %t confirmed %t; ", s.GetRevision(), s.GetGeneration(), s.GetHold(), s.GetPruneConfirmed())
	}
	if d.GetProblem() != "" {
		out += fmt.Sprintf("r%d has a problem: %s; ", d.GetProblemRevision(), d.GetProblem())
	}
	if d.GetNextRevision() != 0 {
		out += fmt.Sprintf("then r%d of %d", d.GetNextRevision(), d.GetNextGeneration())
	}
	return strings.TrimSuffix(cmp.Or(out, "nothing"), "; ")
}

func (o order) finds(format string, args ...any) {
	o.interleaved.finds("%s in %s: "+format, append([]any{o.ref.Name, o.cluster}, args...)...)
}

func (o order) judge() {
	there := clusterOf(o.is, o.cluster)
	if o.has == nil {
		o.forgotten()
		return
	}
	if there == nil {
		o.finds("there is an order to a cluster that is not there")
		return
	}
	if record.Generation(o.has) < record.Generation(o.had) {
		o.finds("generation %d follows %d", record.Generation(o.has), record.Generation(o.had))
	}
	if record.Generation(o.has) != record.Generation(o.had) {
		o.held()
		o.moved()
	}
	o.goes(there)
	o.lets(there)
}

// held: what is ordered while a hold is in force says so.
func (o order) held() {
	h := frozen(o.was)
	s, dead := o.has.GetSync(), o.has.GetTombstone()
	switch {
	case dead != nil && dead != o.had.GetTombstone() && !dead.GetHold() && h.Stops(o.ref, o.cluster):
		o.finds("held, and its removal is ordered")
	case s != nil && dead == nil && s.GetGeneration() != o.had.GetSync().GetGeneration() && !s.GetHold() && h.Frozen(o.ref, o.cluster):
		o.finds("held, and something is ordered")
	}
}

func revisionOf(d *storev1.DesiredRecord) int64 {
	if d.GetProblem() != "" {
		return d.GetProblemRevision()
	}
	return max(d.GetSync().GetRevision(), d.GetNextRevision())
}

// moved: a cordoned cluster is given no revision, and one that is being removed is given none either.
func (o order) moved() {
	rec := clusterOf(o.was, o.cluster)
	if revisionOf(o.has) == revisionOf(o.had) || revisionOf(o.has) == 0 {
		return
	}
	if rec.GetCluster().GetSpec().GetCordoned() {
		o.finds("cordoned, and moved from r%d to r%d", revisionOf(o.had), revisionOf(o.has))
	}
	if rec.GetRemoving() != "" {
		o.finds("being removed, and moved from r%d to r%d", revisionOf(o.had), revisionOf(o.has))
	}
}

// deletes reports that a record orders a Kubernetes cluster to delete what it has of the module.
func deletes(d *storev1.DesiredRecord, cluster *storev1.ClusterRecord) bool {
	dead := d.GetTombstone()
	return dead != nil && !dead.GetHold() && dead.GetPolicy() != fleet.DeleteOrphan && !record.Elsewhere(d, nil, cluster)
}

// goes: what is ordered to go is of a deleted module, or is not to be there by any placement that may be in force; and nothing takes the last
// module of a cluster but a person's word.
func (o order) goes(there *storev1.ClusterRecord) {
	if !deletes(o.has, there) || deletes(o.had, clusterOf(o.was, o.cluster)) {
		return
	}
	m, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(o.was), store.ModuleKey(o.ref))
	if o.has.GetFinal() && (m == nil || m.GetDeleting() != "" || o.had.GetFinal()) {
		return
	}
	if m.GetDeleting() != "" {
		return
	}
	if !o.mayLeave(m) {
		o.finds("goes, and every placement has it there")
	}
	if o.had.GetSync() != nil && o.had.GetTombstone() == nil && o.isLast() && !o.said.confirmed[confirmation(fleet.HoldLeaves, o.ref, there.GetUid())] {
		o.finds("was the last module there, and goes without a word")
	}
}

// mayLeave reports that some placement of the module, of those that may be in force, does not have it in the cluster.
func (o order) mayLeave(m *storev1.ModuleRecord) bool {
	c := record.Cluster(clusterOf(o.was, o.cluster))
	specs := []*storev1.RevisionRecord{}
	for _, rev := range all[*storev1.RevisionRecord](o.was, store.RevisionPrefix+o.ref.String()+"/") {
		specs = append(specs, rev)
	}
	placed, err := wire.ModuleFromProto(m.GetModule())
	if err == nil && assemble.MayLeave(&placed.Placement, &c) {
		return true
	}
	return slices.ContainsFunc(specs, func(rev *storev1.RevisionRecord) bool {
		placed, err := wire.ModuleFromProto(record.ModuleOfRevision(o.ref, rev))
		return err == nil && assemble.MayLeave(&placed.Placement, &c)
	})
}

// isLast reports that no other module is in the cluster, or is placed there.
func (o order) isLast() bool {
	c := record.Cluster(clusterOf(o.was, o.cluster))
	for _, other := range wovenModules {
		m, _, ok := store.Get[*storev1.ModuleRecord](store.Untracked(o.was), store.ModuleKey(other))
		if other == o.ref || !ok || m.GetDeleting() != "" {
			continue
		}
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(o.is), store.DesiredKey(o.cluster, other))
		placed, err := wire.ModuleFromProto(m.GetModule())
		if d.GetSync() != nil && d.GetTombstone() == nil || err == nil && !assemble.MayLeave(&placed.Placement, &c) {
			return false
		}
	}
	return true
}

// lets: what a person let go goes in the cluster that he was asked about.
func (o order) lets(there *storev1.ClusterRecord) {
	if o.has.GetSync().GetPruneConfirmed() && !o.had.GetSync().GetPruneConfirmed() && !o.said.confirmed[confirmation(fleet.HoldDrops, o.ref, there.GetUid())] {
		o.finds("is let go what nobody was asked about in %s", there.GetUid())
	}
}

// forgotten: a removal that is ordered is forgotten when the agent has done it, or nobody ever will.
func (o order) forgotten() {
	rec := clusterOf(o.was, o.cluster)
	if rec == nil || rec.GetRemoving() != "" || rec.GetJoined() == nil || record.Elsewhere(o.had, record.DeletedTakes(o.was, o.ref, moduleOf(o.was, o.ref)), rec) {
		return
	}
	t, _ := record.Track(store.Untracked(o.was), o.cluster, o.ref, true)
	if o.had.GetTombstone() != nil && !t.Tracker.Removed {
		o.finds("is forgotten before the agent has removed it")
	}
	if o.had.GetSync() != nil && o.had.GetTombstone() == nil {
		o.finds("is forgotten, and was there")
	}
}

// noteRollouts notes which rollouts came to another state.
func (w *interleaved) noteRollouts(was, is store.Reader) {
	for _, prefix := range []string{store.StartPrefix, store.RolloutPrefix} {
		before, after := all[*storev1.RolloutRecord](was, prefix), all[*storev1.RolloutRecord](is, prefix)
		keys := maps.Clone(before)
		maps.Copy(keys, after)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			a, b := before[key], after[key]
			if rollouts.StateOf(a) != rollouts.StateOf(b) || (a == nil) != (b == nil) {
				w.note("%s: %s -> %s %s", key, rollouts.StateOf(a), rollouts.StateOf(b), b.GetRollout().GetStatus().GetReason())
			}
		}
	}
}
