package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
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
	w.said.notes(was, is)
	w.judgeSteps(was, is)
	w.judgeCatalog(was, is)
	before, after := all[*storev1.DesiredRecord](was, store.DesiredPrefix), all[*storev1.DesiredRecord](is, store.DesiredPrefix)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] == after[key] {
			continue
		}
		cluster, ref, _ := store.SplitClusterModule(key)
		o := order{interleaved: w, was: was, is: is, cluster: cluster, ref: ref, had: before[key], has: after[key]}
		w.note("%s: %s -> %s", key, brieflyOf(o.had), brieflyOf(o.has))
		o.judge()
	}
	w.noteRollouts(was, is)
	w.noteKeys(was, is, store.HoldPrefix, store.ConfirmPrefix)
	w.judgeGone(was, is)
	w.judgeLeaves(was, is)
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
	// later says that the order was given by a step before: what it was not to rest on was judged then.
	later bool
}

// judgeSteps judges orders to many clusters, which are written for each of them later.
func (w *interleaved) judgeSteps(was, is store.Reader) {
	for key, step := range all[*storev1.StepRecord](is, store.StepPrefix) {
		if _, old := was.Get(key); old {
			continue
		}
		w.note("%s: %v to r%d", key, step.GetClusters(), step.GetRevision())
		w.said.steps[step.GetGeneration()] = true
		i := slices.IndexFunc(wovenModules, func(ref fleet.ModuleRef) bool { return strings.HasPrefix(key, store.StepPrefix+ref.String()+"/") })
		for _, name := range names(step.GetClusters()) {
			o := order{interleaved: w, was: was, is: is, cluster: name, ref: wovenModules[i]}
			at := store.DesiredKey(name, o.ref)
			o.had, _, _ = store.Get[*storev1.DesiredRecord](store.Untracked(was), at)
			w.said.gives(at, step.GetGeneration(), clusterOf(was, name).GetUid())
			switch {
			case step.GetRevision() != 0:
				o.has = &storev1.DesiredRecord{Sync: &agentv1.Sync{Revision: step.GetRevision(), Generation: step.GetGeneration()}}
				o.comes()
			case o.had.GetSync() != nil && o.had.GetTombstone() == nil:
				o.has = &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Generation: step.GetGeneration(), Policy: fleet.DeleteDelete}}
				o.goes(clusterOf(was, name))
			}
		}
	}
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
	o.later = o.said.steps[record.Generation(o.has)]
	if o.has == nil {
		o.forgotten()
		return
	}
	if there == nil {
		o.finds("there is an order to a cluster that is not there")
		return
	}
	o.follows()
	if record.Generation(o.has) != record.Generation(o.had) {
		o.held()
		o.values()
		o.moved()
		o.comes()
	}
	o.goes(there)
	o.lets(there)
}

// follows: nothing that an agent was told is told anew by an older word, nor is anything given by a word older than another one about the same. What waits
// for the end of a removal, or could not be assigned, goes with what takes it back: nobody was told of it.
func (o order) follows() {
	had, now, given := record.Generation(o.had), record.Generation(o.has), record.GivenGeneration(o.has)
	ended := given == 0 && o.had.GetTombstone() != nil && o.had.GetSync() == nil // a removal: whether it is done is judged where it goes
	if now < had && given < now || given < record.GivenGeneration(o.had) && !ended {
		o.finds("generation %d follows %d", now, had)
	}
	for g := range o.said.given[store.DesiredKey(o.cluster, o.ref)] {
		if now != had && now < g && now != record.GivenGeneration(o.had) {
			o.finds("is given what was ordered at %d, and %d was since", now, g)
		}
	}
}

// values: what is given has the values that its revision asks for, each of which the cluster has, or had when that was looked at.
func (o order) values() {
	s := o.has.GetSync()
	if s == nil || s.GetGeneration() == o.had.GetSync().GetGeneration() {
		return
	}
	rev, _, ok := store.Get[*storev1.RevisionRecord](store.Untracked(o.was), store.RevisionKey(o.ref, s.GetRevision()))
	want := rev.GetRevision().GetSpec().GetBindings()
	right := len(s.GetValues()) == len(want)
	for _, b := range want {
		right = right && o.said.labels[o.cluster][s.GetValues()[b.GetName()]]
	}
	if ok && !right {
		o.finds("is given r%d with the values %v of other bindings or labels than its own", s.GetRevision(), s.GetValues())
	}
}

// held: what is ordered while a hold is in force says so.
func (o order) held() {
	h := frozen(o.was)
	s, dead := o.has.GetSync(), o.has.GetTombstone()
	switch {
	case dead != nil && dead.GetGeneration() != o.had.GetTombstone().GetGeneration() && !dead.GetHold() && h.Stops(o.ref, o.cluster):
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

// comes: a cordoned cluster is given no revision, also none that it could not have before, nor is one that has nothing of the module and is in no
// placement in force, unless it goes back.
func (o order) comes() {
	n, c := revisionOf(o.has), record.Cluster(clusterOf(o.was, o.cluster))
	could := o.had.GetProblem() == "" || o.has.GetProblem() != "" || o.has.GetSync().GetRevision() == o.had.GetSync().GetRevision()
	if n == 0 || n == revisionOf(o.had) && could {
		return
	}
	switch {
	case record.Stands(store.Untracked(o.was)):
		o.finds("a restored store stands, and moved from r%d to r%d", revisionOf(o.had), n)
	case c.Cordoned && !o.later:
		o.finds("cordoned, and moved from r%d to r%d", revisionOf(o.had), n)
	case o.had == nil && !o.goesBack() && !slices.ContainsFunc(o.inForce(), func(p fleet.Placement) bool { return assemble.Places(p, c, false) }):
		o.finds("moved from r%d to r%d, and no placement has it there", revisionOf(o.had), n)
	}
}

// moved: a cluster that is being removed is given no revision, nor any one of a module that is deleted.
func (o order) moved() {
	rec, m := clusterOf(o.was, o.cluster), moduleOf(o.was, o.ref)
	n := revisionOf(o.has)
	if n == revisionOf(o.had) || n == 0 {
		return
	}
	switch {
	case rec.GetRemoving() != "":
		o.finds("being removed, and moved from r%d to r%d", revisionOf(o.had), n)
	case m == nil || m.GetDeleting() != "":
		o.finds("deleted, and moved from r%d to r%d", revisionOf(o.had), n)
	case n < m.GetFirstRevision():
		o.finds("given r%d of a module that had the name before", n)
	}
}

// goesBack reports that the module is on the way back to an older revision, or went there.
func (o order) goesBack() bool {
	is := store.Untracked(o.is)
	return rollouts.OutlookOf(rollouts.Driven(is, o.ref)).Back || rollouts.RolledBack(is, o.ref, rollouts.Last(is, o.ref))
}

// inForce are the placements that are in force before the commit, or after it.
func (o order) inForce() (out []fleet.Placement) {
	for _, r := range []store.Reader{o.was, o.is} {
		to := rollouts.OutlookOf(rollouts.Driven(store.Untracked(r), o.ref))
		if m, err := record.ModuleAt(store.Untracked(r), o.ref, to.Places); to.Places != 0 && err == nil {
			out = append(out, m.Placement)
		}
	}
	return out
}

// deletes reports that a record orders the Kubernetes cluster that has the name to delete what it has of the module.
func (o order) deletes(r store.Reader, d *storev1.DesiredRecord) bool {
	dead := d.GetTombstone()
	return dead != nil && !dead.GetHold() && dead.GetPolicy() != fleet.DeleteOrphan && o.said.isOf(r, o.cluster, o.ref, d)
}

// goes: what is ordered to go is of a module that was deleted in this cluster, and not in one that had the name before, or is not to be there by the
// placement that is in force; nothing takes the last module of a cluster but a person's word; and what one cluster was to delete is no order to another.
func (o order) goes(there *storev1.ClusterRecord) {
	if !o.deletes(o.is, o.has) || o.deletes(o.was, o.had) {
		return
	}
	m, uid := moduleOf(o.was, o.ref), there.GetUid()
	given := o.said.given[store.DesiredKey(o.cluster, o.ref)]
	switch {
	case o.had.GetTombstone() != nil && given[record.GivenGeneration(o.had)] != uid:
		o.finds("what %s was to delete goes in %s", given[record.GivenGeneration(o.had)], uid)
	case clusterOf(o.was, o.cluster).GetRemoving() != "": // it leaves the fleet: its agent is told one word for all that it has, and is told to delete nothing if that is to keep it
	case o.has.GetFinal() && (m == nil || m.GetDeleting() == "" && o.had.GetFinal()):
	case m.GetDeleting() != "":
		if o.said.deleted[uidOf(m)][o.cluster] != uid && o.had.GetTombstone() == nil {
			o.finds("was deleted in %s, and goes in %s", o.said.deleted[uidOf(m)][o.cluster], uid)
		}
	case !o.mayLeave():
		o.finds("goes, and the placement in force has it there")
	case o.had.GetSync() != nil && o.had.GetTombstone() == nil && !o.later && o.isLast() && !o.said.confirmed[confirmation(fleet.HoldLeaves, o.ref, uid)]:
		o.finds("was the last module there, and goes without a word")
	}
}

// mayLeave reports that a placement in force does not have the module in the cluster.
func (o order) mayLeave() bool {
	c := record.Cluster(clusterOf(o.was, o.cluster))
	return slices.ContainsFunc(o.inForce(), func(p fleet.Placement) bool { return assemble.MayLeave(&p, &c) })
}

// isLast reports that no other module is in the cluster, or comes there: by the placement in force, or by what was put last.
func (o order) isLast() bool {
	c := record.Cluster(clusterOf(o.was, o.cluster))
	for _, other := range wovenModules {
		m := moduleOf(o.was, other)
		if other == o.ref || m == nil || m.GetDeleting() != "" {
			continue
		}
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(o.is), store.DesiredKey(o.cluster, other))
		placements := (order{interleaved: o.interleaved, was: o.was, is: o.is, ref: other}).inForce()
		if placed, err := wire.ModuleFromProto(m.GetModule()); err == nil {
			placements = append(placements, placed.Placement)
		}
		if d.GetSync() != nil && d.GetTombstone() == nil || slices.ContainsFunc(placements, func(p fleet.Placement) bool { return assemble.Places(p, c, true) }) {
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
	if rec == nil || rec.GetRemoving() != "" || rec.GetJoined() == nil || !o.said.isOf(o.was, o.cluster, o.ref, o.had) {
		return
	}
	if dead := o.had.GetTombstone(); dead != nil && o.made[rec.GetUid()].removed[o.ref] < dead.GetGeneration() {
		o.finds("is forgotten before the agent has removed it")
	}
	if o.had.GetSync() != nil && o.had.GetTombstone() == nil {
		o.finds("is forgotten, and was there")
	}
}

// judgeGone: a module goes when it is deleted and nothing of it is left, a cluster when its agent has said that it is through, or is told nothing, and
// a hold when somebody ends it, or with what it is of.
func (w *interleaved) judgeGone(was, is store.Reader) {
	for key, m := range all[*storev1.ModuleRecord](was, store.ModulePrefix) {
		ref, _ := store.SplitModule(key)
		if next := moduleOf(is, ref); next != nil {
			if uidOf(next) != uidOf(m) {
				w.judgeSuccession(was, ref, m)
			}
			continue
		}
		if m.GetDeleting() == "" {
			w.finds("%s: is forgotten, and nobody deleted it", ref.Name)
		}
		for _, name := range wovenClusters {
			if _, left := is.Get(store.DesiredKey(name, ref)); left {
				w.finds("%s: is forgotten, and left in a cluster", ref.Name)
			}
		}
	}
	for key, c := range all[*storev1.ClusterRecord](was, store.ClusterPrefix) {
		if _, there := is.Get(key); there {
			continue
		}
		name := fleet.ClusterName(c.GetCluster().GetMetadata().GetName())
		if c.GetRemoving() == "" || c.GetJoined() != nil && !c.GetRevoked() && !w.made[c.GetUid()].left && w.owes(was, name) {
			w.finds("%s: is forgotten before its agent is through", name)
		}
	}
	for key, h := range all[*storev1.HoldRecord](was, store.FreezePrefix) {
		x := h.GetHold()
		rec, m := clusterOf(was, fleet.ClusterName(x.GetCluster())), moduleOf(was, fleet.ModuleRef{Project: x.GetProject(), Name: x.GetModule()})
		if _, there := is.Get(key); !there && !w.said.ended[key] && rec.GetRemoving() == "" && m.GetDeleting() == "" {
			w.finds("hold: %s has ended, and nobody ended it", key)
		}
	}
}

// judgeLeaves: no cluster is told to leave by a word that goes against what somebody said of a module that is deleted, and that its agent has not done
// yet; and none joins that is being removed.
func (w *interleaved) judgeLeaves(was, is store.Reader) {
	for _, name := range wovenClusters {
		before, now := clusterOf(was, name), clusterOf(is, name)
		if now.GetRemoving() != "" && before.GetRemoving() != "" && now.GetJoinGeneration() != before.GetJoinGeneration() {
			w.finds("%s: joins, and is being removed", name)
		}
		if now.GetRemoving() == "" || now.GetRemoving() == before.GetRemoving() || now.GetRevoked() || now.GetJoined() == nil {
			continue
		}
		against := map[string]string{fleet.LeaveKeep: fleet.DeleteDelete, fleet.LeaveDelete: fleet.DeleteOrphan}[now.GetRemoving()]
		for _, ref := range wovenModules {
			m := moduleOf(was, ref)
			d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(was), store.DesiredKey(name, ref))
			given := record.GivenGeneration(d)
			if done := d.GetTombstone() != nil && w.made[now.GetUid()].removed[ref] >= given; given > 0 && !done && m.GetDeleting() == against && w.said.deleted[uidOf(m)][name] == now.GetUid() {
				w.finds("%s: leaves by %s, and %s is to go there by %s", name, now.GetRemoving(), ref.Name, against)
			}
		}
	}
}

// judgeSuccession: another module takes the name of a deleted one when the removal of that is ordered, as it was said last, in each cluster in which it was
// deleted.
func (w *interleaved) judgeSuccession(was store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) {
	for _, name := range wovenClusters {
		d, _, ok := store.Get[*storev1.DesiredRecord](store.Untracked(was), store.DesiredKey(name, ref))
		if uid := clusterOf(was, name).GetUid(); !ok || uid == "" || w.said.deleted[uidOf(m)][name] != uid || clusterOf(was, name).GetRemoving() != "" {
			continue
		}
		if d.GetTombstone() == nil || record.Unsaid(d, m.GetDeleting(), m.GetFirstRollout()) {
			w.finds("%s in %s: another module takes the name of one whose removal is not ordered: %s", ref.Name, name, brieflyOf(d))
		}
	}
}

// noteRollouts notes which rollouts came to another state: none begins that has ended before.
func (w *interleaved) noteRollouts(was, is store.Reader) {
	for _, prefix := range []string{store.StartPrefix, store.RolloutPrefix} {
		before, after := all[*storev1.RolloutRecord](was, prefix), all[*storev1.RolloutRecord](is, prefix)
		keys := maps.Clone(before)
		maps.Copy(keys, after)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			a, b := before[key], after[key]
			if a != nil && rollouts.Ended(a) && a.GetRollout().GetRevision() == 0 && b.GetRollout().GetRevision() != 0 {
				w.finds("%s: had ended %s, and begins", key, rollouts.StateOf(a))
			}
			if rollouts.StateOf(a) != rollouts.StateOf(b) || (a == nil) != (b == nil) {
				w.note("%s: %s -> %s %s", key, rollouts.StateOf(a), rollouts.StateOf(b), b.GetRollout().GetStatus().GetReason())
			}
		}
	}
}

// noteKeys notes which keys came and went.
func (w *interleaved) noteKeys(was, is store.Reader, prefixes ...string) {
	for _, prefix := range prefixes {
		was.Scan(prefix, func(e store.Entry) bool {
			if _, there := is.Get(e.Key); !there {
				w.note("%s ends", e.Key)
			}
			return true
		})
		is.Scan(prefix, func(e store.Entry) bool {
			if old, there := was.Get(e.Key); !there || old.ModRevision != e.ModRevision {
				w.note("%s is put", e.Key)
			}
			return true
		})
	}
}
