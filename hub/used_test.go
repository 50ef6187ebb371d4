package hub_test

import (
	"fmt"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestWhatIsOnlyUsedIsNotSaidToGo: a Namespace that was there before the module is not the module's, and stays when that goes. The agent says
// which those are; what is said of a deletion, or of a cluster that the module leaves, counts them among what stays, also while the agent is away.
func TestWhatIsOnlyUsedIsNotSaidToGo(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", map[string]string{"env": "prod"})
	w.connectWith("c", simagent.Options{Keep: true, Report: func(s fleet.Sync) fleet.SyncStatus {
		if s.Revision > 1 {
			return fleet.SyncStatus{} // it has not said anything of it yet
		}
		st := simagent.Ready(s)
		st.States[len(st.States)-1].Used = true // the last by name
		return st
	}})
	m := module("shop", map[string]string{"a.yaml": configMap("1")["a.yaml"] + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: ours}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: theirs}}\n"})
	m.Spec.Placement.Selector = &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	w.await("shop", w.put(m).GetRevision())
	said := func(when string, goes int32) {
		t.Helper()
		deleted, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: true})
		must(t, err)
		if k := deleted.GetKeeps(); deleted.GetObjects() != goes || len(k) != 1 || k[0].GetKind() != "Namespace" || k[0].GetObjects() != 1 {
			t.Errorf("%s: a deletion removes %d objects and keeps %v, want %d, and one Namespace", when, deleted.GetObjects(), k, goes)
		}
		moved, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{DryRun: true, Apply: true,
			Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"env": "none"}}}})
		must(t, err)
		if moved.GetRemovesObjects() != goes {
			t.Errorf("%s: a label removes %d objects, want %d", when, moved.GetRemovesObjects(), goes)
		}
	}
	said("connected", 2)
	m.Spec.Source.GetInline().Files["a.yaml"] += "---\n{apiVersion: v1, kind: Namespace, metadata: {name: more}}\n"
	w.put(m)
	w.eventually(func() bool { // it is assigned, and nobody has said how far it is there
		all := w.objects(&towlinev1.ObjectFilter{Cluster: "c"})
		return len(all) == 4 && all[0].GetRevision() == 2
	})
	said("another revision is on its way", 3)
	w.leaves("c")
	said("away", 3)
}

// TestWhatGoesIsOfTheModuleBefore: a module is deleted, and another one is put under its name before the agent has said what comes of the
// removal. What goes there is what the cluster has, by its names, and what comes is of another list.
func TestWhatGoesIsOfTheModuleBefore(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.connectWith("a", simagent.Options{Report: simagent.Ready, Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} }})
	w.await("shop", w.put(module("shop", map[string]string{"a.yaml": strings.Replace(configMapText("1"), "web", "before", 1)})).GetRevision())
	w.delete("shop", false)
	w.put(module("shop", map[string]string{"a.yaml": strings.Replace(configMapText("1"), "web", "after", 1)}))
	var got string
	w.eventually(func() bool {
		got = ""
		for _, o := range w.objects(&towlinev1.ObjectFilter{Cluster: "a"}) {
			got += fmt.Sprintf("%s extra %t; ", o.GetObject().GetName(), o.GetExtra())
		}
		return got == "after extra false; before extra true; "
	})
	if goes, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: true}); err != nil || goes.GetObjects() != 1 {
		t.Errorf("a deletion removes %d objects, want the one that is there (%v)", goes.GetObjects(), err)
	}
}
