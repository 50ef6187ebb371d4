package worker

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// A policy that comes after an object was dropped counts when the module goes: it is the module's last word.
func TestPolicyOfADroppedObject(t *testing.T) {
	for name, policy := range map[string]fleet.Policy{"never": {Prune: fleet.PruneNever}, "orphan": {Delete: fleet.DeleteOrphan}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			claims := fleet.Policy{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}}, Prune: fleet.PruneOnModuleDelete}
			s := r.bundle("shop", []fleet.Policy{claims}, configMap("a", "k: v"), volume("fast"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			s = r.bundle("shop", []fleet.Policy{claims}, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.wait("shop", "kept", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && len(x.Extras) == 1 })
			policy.Match = claims.Match
			s = r.bundle("shop", []fleet.Policy{policy, claims}, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if u := r.get("v1", "persistentvolumeclaims", "data"); u == nil || u.GetDeletionTimestamp() != nil {
				t.Error("the claim was deleted against the module's last word")
			}
		})
	}
}

// A revision drops objects together with the policies that keep them: what they said holds until another policy says otherwise, and
// when the module goes.
func TestPolicyThatIsDroppedWithItsObject(t *testing.T) {
	db := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": "db"}}}
	for name, others := range map[string][]fleet.Policy{
		"alone": nil,
		"beside some by labels that it does not have": {{Match: db, Prune: fleet.PruneNever, Delete: fleet.DeleteOrphan}, {Match: db, Prune: fleet.PruneOnUpdate}},
	} {
		t.Run(name, func(t *testing.T) { testPolicyThatIsDroppedWithItsObject(t, others) })
	}
}

func testPolicyThatIsDroppedWithItsObject(t *testing.T, others []fleet.Policy) {
	r := newRig(t)
	with := func(own ...fleet.Policy) []fleet.Policy { return append(own, others...) }
	named := func(name string) fleet.PolicyMatch { return fleet.PolicyMatch{Names: []string{name}} }
	s := r.bundle("shop", with(fleet.Policy{Match: named("b"), Prune: fleet.PruneNever}, fleet.Policy{Match: named("c"), Prune: fleet.PruneNever}, fleet.Policy{Match: named("d"), Delete: fleet.DeleteOrphan}),
		configMap("a", "k: v"), configMap("b", "k: v"), configMap("c", "k: v"), configMap("d", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", with(), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && slices.Equal(names(x.Extras, plan.ReasonKept), []string{"b", "c"})
	})
	if d := r.get("v1", "configmaps", "d"); d == nil || d.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("d is %v", d)
	}
	s = r.bundle("shop", with(fleet.Policy{Match: named("b"), Prune: fleet.PruneOnUpdate}), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "rid of b", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && slices.Equal(names(x.Extras, plan.ReasonKept), []string{"c"}) && len(x.Extras) == 1
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "b") != nil || r.get("v1", "configmaps", "c") == nil {
		t.Error("b is there, or c is not")
	}
}

// What was found again has the policies of the sync.
func TestPolicyOfAFoundObject(t *testing.T) {
	r := newRig(t)
	never := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"b"}}, Prune: fleet.PruneNever}}
	s := r.bundle("shop", never, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", never, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && len(x.Extras) == 1 })
	r.loseState()
	r.forget()
	r.set([]fleet.Sync{s})
	r.wait("shop", "kept again", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 1 })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "b") == nil {
		t.Error("deleted against prune: Never")
	}
}

// An agent loses its records, and hears of a module only that it goes: what was found of it has the policies that its removal, or
// the sync that is there when the cluster leaves, tells.
func TestPolicyOfWhatIsFoundForItsRemoval(t *testing.T) {
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"b"}}, Delete: fleet.DeleteOrphan},
		{Match: fleet.PolicyMatch{Names: []string{"c"}}, Prune: fleet.PruneNever}}
	for name, removed := range map[string]func(r *rig, s fleet.Sync){
		"the module goes": func(r *rig, s fleet.Sync) {
			dead := r.tombstone("shop", fleet.DeleteDelete)
			content, err := wire.Keeping(fleet.PolicySet{Policies: policies})
			if err != nil {
				r.t.Fatal(err)
			}
			dead.Policies = string(content)
			r.set(nil, dead)
		},
		"the cluster leaves": func(r *rig, s fleet.Sync) {
			r.current = fleet.Assemblage{Generation: r.gen, Syncs: []fleet.Sync{s}, Lineage: r.lineage()}
			r.m.Set(r.current, nil) // as an agent does that starts, and was told to leave before
			r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"), configMap("c", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.loseState()
			r.forget()
			removed(r, s)
			x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "b") == nil || r.get("v1", "configmaps", "c") == nil {
				t.Errorf("a, b, c: %v, %v, %v", r.get("v1", "configmaps", "a"), r.get("v1", "configmaps", "b"), r.get("v1", "configmaps", "c"))
			}
			if !strings.Contains(x.Message, "/b") || !strings.Contains(x.Message, "/c") {
				t.Errorf("said %q", x.Message)
			}
		})
	}
}

// An object that was handed over has the policies of the module that has it now.
func TestPolicyOfAnObjectHandedOver(t *testing.T) {
	r := newRig(t)
	named := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}}, Prune: fleet.PruneOnModuleDelete}}
	one := r.bundle("one", named, volume("fast"))
	r.set([]fleet.Sync{one})
	r.applied(one)
	two := r.bundle("two", nil, volume("fast"))
	two.Hold = true
	r.set([]fleet.Sync{one, two})
	r.wait("two", "in conflict", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })
	dead := r.tombstone("one", fleet.DeleteDelete)
	r.set([]fleet.Sync{two}, dead)
	r.wait("one", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if u := r.get("v1", "persistentvolumeclaims", "data"); u == nil || u.GetDeletionTimestamp() != nil {
		t.Fatal("not handed over")
	}
	r.set(nil, dead, r.tombstone("two", fleet.DeleteDelete))
	r.wait("two", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if u := r.get("v1", "persistentvolumeclaims", "data"); u == nil || u.GetDeletionTimestamp() != nil {
		t.Error("a claim went of which no policy of its module says so")
	}
}
