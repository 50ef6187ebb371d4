package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// A hub that was joined anew counts its generations from one: what it omits goes, and what it removes is removed, also
// objects that carry the mark of the hub before.
func TestRejoinedHubPrunesAndRemoves(t *testing.T) {
	for name, other := range map[string]string{"the same hub": "", "another hub": "-anew"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.gen = 900
			one := r.bundle("one", nil, configMap("a", "k: one"), configMap("b", "k: one"), configMap("c", "k: one"))
			two := r.bundle("two", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("d", "k: one"), configMap("e", "k: one"))
			three := r.bundle("three", nil, configMap("f", "k: one"))
			r.set([]fleet.Sync{one, two, three})
			r.ready(one)
			r.ready(two)
			r.ready(three)

			r.rejoin(r.hub + other)
			anew := r.bundle("one", nil, configMap("a", "k: one"), configMap("b", "k: two"))
			same := r.bundle("two", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("d", "k: one"), configMap("e", "k: one"))
			r.m.Set(fleet.Assemblage{Generation: r.gen, Syncs: []fleet.Sync{anew, same}, Lineage: r.lineage()}, []fleet.Sync{three})
			r.ready(anew)
			r.eventually("c, which the hub omits, is pruned", func() bool { return r.get("v1", "configmaps", "c") == nil })
			if s := r.ready(same); s.Corrections > 0 || len(s.Exceptions) > 0 {
				t.Errorf("a module that did not change: %+v", s)
			}
			for _, name := range []string{"a", "b", "d", "e"} {
				if u := r.get("v1", "configmaps", name); u == nil || u.GetLabels()[fleet.HubLabel] != r.hub {
					t.Errorf("%s: %v", name, u)
				}
			}
			if r.get("v1", "configmaps", "f") == nil {
				t.Error("a stray was pruned")
			}

			gone := []fleet.Tombstone{r.tombstone("two", fleet.DeleteDelete), r.tombstone("three", fleet.DeleteDelete)}
			r.set([]fleet.Sync{anew}, gone...)
			for _, x := range gone {
				r.wait(x.Module.Name, "removed", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseRemoved && s.Generation == x.Generation })
			}
			for _, name := range []string{"d", "e", "f"} {
				if r.get("v1", "configmaps", name) != nil {
					t.Errorf("%s stays", name)
				}
			}
		})
	}
}

// Between a new join and the first word of the hub, and for what it has not spoken of since, nothing is deleted for what
// was ordered before.
func TestNothingGoesForALineageThatIsOver(t *testing.T) {
	r := newRig(t)
	r.gen = 900
	one := r.bundle("one", nil, configMap("a", "k: one"), configMap("b", "k: one"))
	two := r.bundle("two", nil, configMap("c", "k: one"))
	r.set([]fleet.Sync{one, two})
	r.ready(one)
	r.ready(two)
	omits := r.bundle("one", nil, configMap("a", "k: two"))
	dead := r.tombstone("two", fleet.DeleteDelete)
	r.rejoin(r.hub)
	r.m.Set(fleet.Assemblage{Generation: omits.Generation, Syncs: []fleet.Sync{omits}, Tombstones: []fleet.Tombstone{dead}, Lineage: r.lineage()}, nil)
	s := r.ready(omits)
	if len(s.Extras) != 1 || s.Extras[0].ID.Name != "b" {
		t.Errorf("extras %+v", s.Extras)
	}
	r.wait("two", "said to stay", func(s fleet.SyncStatus) bool { return len(s.Extras) == 1 })
	for _, name := range []string{"b", "c"} {
		if r.get("v1", "configmaps", name) == nil {
			t.Errorf("%s was deleted", name)
		}
	}
}
