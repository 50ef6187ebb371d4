package control

import (
	"context"
	"fmt"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// coursesOfLegacy are of what keepLegacy keeps, until a person deletes the tracker of the revision that listed it last.
func coursesOfLegacy() []course {
	before := func(w *interleaved) {
		w.legacyPut(4)
		w.calms()
		w.legacyPut(1)
	}
	return []course{
		{"a tracker is deleted", 0, before, func(w *interleaved) { w.deletesTracker(moduleOne, "b", 1) }},
		{"a tracker is deleted, and its revision comes back", 0, before, func(w *interleaved) {
			w.deletesTracker(moduleOne, "b", 1)
			w.steersIt("roll back", moduleOne, "b")
		}},
		{"a tracker is deleted, and another revision is put", 0, before, func(w *interleaved) {
			w.deletesTracker(moduleOne, "b", 1)
			w.legacyPut(2)
		}},
		{"keepLegacy ends, confirmed", 0, before, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 1})
			w.calms()
			w.letsGo()
		}},
		{"restored from before a tracker was deleted, accepted", 0, func(w *interleaved) {
			before(w)
			w.calms()
			w.backsUp()
			w.deletesTracker(moduleOne, "b", 1)
		}, func(w *interleaved) {
			w.restores()
			w.calms()
			w.accepts(&towlinev1.AcceptRestoreRequest{})
		}},
	}
}

// coursesOfDeletedInABackup are of a store that is made from a backup which has a module that is being deleted.
func coursesOfDeletedInABackup() []course {
	before := func(then func(*interleaved)) func(*interleaved) {
		return func(w *interleaved) {
			w.bothPut()
			w.calms()
			w.comesUp("b", false)
			w.deletesIt(moduleOne, false)
			w.calms()
			w.backsUp()
			w.comesUp("b", true)
			w.calms()
			then(w)
		}
	}
	back := func(w *interleaved) {
		w.restores()
		w.calms()
		w.accepts(&towlinev1.AcceptRestoreRequest{})
	}
	return []course{
		{"restored from when a module went that is gone, accepted", 0, before(func(*interleaved) {}), back},
		{"restored from when a module went that was put again, accepted", 0, before(func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4}) }), back},
		{"restored from when a module went, put again, accepted", 0, before(func(*interleaved) {}), func(w *interleaved) {
			w.restores()
			w.shapes(moduleOne, shape{objects: 3})
			w.calms()
			w.accepts(&towlinev1.AcceptRestoreRequest{})
		}},
	}
}

// toldOfLegacy are about what keepLegacy keeps.
func toldOfLegacy() []told {
	return []told{
		{"delete the tracker of one in b", func(w *interleaved) { w.deletesTracker(moduleOne, "b", 1) }},
		{"put one, which keeps, four objects", func(w *interleaved) { w.legacyPut(4) }},
		{"put one, which keeps, two objects", func(w *interleaved) { w.legacyPut(2) }},
	}
}

// legacyPut puts the first module with so many objects; what it drops stays.
func (w *interleaved) legacyPut(objects int) {
	w.number++
	m := w.spec(moduleOne, objects, "", "")
	m.Spec.Policies = []*towlinev1.Policy{{KeepLegacy: new(true)}}
	w.call(fmt.Sprintf("put one, %d objects, which keeps what it drops", objects), func(ctx context.Context) error {
		_, err := w.api.PutModule(ctx, &towlinev1.PutModuleRequest{Module: m, Take: true})
		return err
	})
}

// deletesTracker has a person delete what is kept of a revision in a cluster, as it is shown.
func (w *interleaved) deletesTracker(ref fleet.ModuleRef, name fleet.ClusterName, revision int64) {
	got, err := w.api.GetTracker(w.ctx, &towlinev1.GetTrackerRequest{Project: ref.Project, Module: ref.Name, Cluster: string(name)})
	if err != nil {
		w.note("delete the tracker of r%d of %s in %s: %v", revision, ref.Name, name, err)
		return
	}
	i := slices.IndexFunc(got.GetTracker().GetRevisions(), func(p *towlinev1.TrackerRevision) bool { return p.GetRevision() == revision && !p.GetCurrent() })
	if i < 0 {
		return
	}
	k := w.kubes[name]
	w.call(fmt.Sprintf("delete the tracker of r%d of %s in %s", revision, ref.Name, name), func(ctx context.Context) error {
		_, err := w.api.DeleteTracker(ctx, &towlinev1.DeleteTrackerRequest{Project: ref.Project, Module: ref.Name, Cluster: string(name), Revision: revision,
			Digest: got.GetTracker().GetRevisions()[i].GetDigest()})
		for id, of := range k.kept[ref] {
			if err == nil && of == revision {
				w.said.confirmed[confirmation(id.String(), ref, k.uid)] = true
			}
		}
		return err
	})
}

// keeps is what an agent keeps of what a sync drops, under keepLegacy, and tells of it; what a person has ordered to go goes.
func (w *interleaved) keeps(k *kube, s fleet.Sync, drops []fleet.ObjectID, st *fleet.SyncStatus) (stay []fleet.ObjectID) {
	for _, id := range drops {
		of, known := k.kept[s.Module][id]
		if !known {
			of = k.revision[s.Module]
			if k.kept[s.Module] == nil {
				k.kept[s.Module] = map[fleet.ObjectID]int64{}
			}
			k.kept[s.Module][id] = of
		}
		if slices.ContainsFunc(s.Recycles, func(r fleet.Recycle) bool { return r.Revision == of && slices.Contains(r.Keys, assemble.HeirKey(id)) }) {
			if !w.said.confirmed[confirmation(id.String(), s.Module, k.uid)] {
				w.finds("%s in %s: %s deletes %s of r%d, which nobody has ordered", s.Module.Name, k.name, k.uid, id, of)
			}
			delete(k.kept[s.Module], id)
			continue
		}
		stay = append(stay, id)
		st.Extras = append(st.Extras, fleet.ExtraObject{ID: id, Version: "v1", Reason: plan.ReasonLegacy, Revision: of,
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}})
	}
	return stay
}
