package worker

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

func sharing(names ...string) []fleet.Policy {
	yes := true
	return []fleet.Policy{{Match: fleet.PolicyMatch{Names: names}, Shared: &yes}}
}

// yieldingTo is a sync whose object of an ordinal the hub gave to another module.
func yieldingTo(s fleet.Sync, owner string, since uint64, ordinal int) fleet.Sync {
	s.Yields = []fleet.Yield{{Owner: fleet.ModuleRef{Project: "default", Name: owner}, Since: since, Ordinals: []int{ordinal}}}
	return s
}

// shares waits until a module shares an object with its owner.
func (r *rig) shares(module, owner string, s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(module, "shares it with "+owner, func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == s.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == fleet.ObjectShared &&
			x.Exceptions[0].ChangedBy == owner && strings.Contains(x.Exceptions[0].Message, owner) && x.States[0].Sync == fleet.SyncSynced
	})
}

// Modules that all say so share an object: the first writes it, each next one has it when that lets it go, without a delete, and its content
// is enforced then; when the last one goes, it goes (scenario 31).
func TestSharedObjectGoesFromModuleToModule(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", sharing("x"), configMap("x", "k: one"), configMap("other", "k: v"))
	two := yieldingTo(r.bundle("two", sharing("x"), configMap("x", "k: two")), "one", 2, 0)
	three := yieldingTo(r.bundle("three", sharing("x"), configMap("x", "k: three")), "one", 3, 0)
	r.set([]fleet.Sync{two, three})
	r.wait("two", "waiting", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplying && !x.Ready && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "AwaitingOwner"
	})
	r.set([]fleet.Sync{one, two, three})
	r.ready(one)
	r.shares("two", "one", two)
	r.shares("three", "one", three)
	uid := r.uidOf("v1", "configmaps", "x")
	r.edit("x")
	r.eventually("what the first says is enforced", func() bool { return r.dataOf("x") == "one" })
	r.stop()
	r.start()
	r.m.Set(r.current, nil)
	r.shares("three", "one", three)

	one = r.bundle("one", sharing("x"), configMap("other", "k: v"))
	two.Yields = nil
	three = yieldingTo(three, "two", 3, 0)
	r.set([]fleet.Sync{one, two, three})
	r.eventually("what the second says is enforced", func() bool { return r.dataOf("x") == "two" })
	r.ready(one)
	r.ready(two)
	r.shares("three", "two", three)
	three.Yields = nil
	r.set([]fleet.Sync{one, three}, r.tombstone("two", fleet.DeleteDelete))
	r.wait("two", "removed", isRemoved)
	r.eventually("what the third says is enforced", func() bool { return r.dataOf("x") == "three" })
	r.ready(three)
	if r.uidOf("v1", "configmaps", "x") != uid {
		t.Error("it was made anew")
	}
	r.set([]fleet.Sync{one}, r.tombstone("three", fleet.DeleteDelete))
	r.wait("three", "removed", isRemoved)
	r.eventually("it goes with the last one", func() bool { return r.get("v1", "configmaps", "x") == nil })
}

// Where one side does not share it, there is a conflict, until it does; one that stops is in conflict again.
func TestSharedByOneSideOnly(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		what       string
		one, two   []fleet.Policy
		conflicted bool
	}{
		{"neither", nil, nil, true},
		{"the first", sharing("x"), nil, true},
		{"both", sharing("x"), sharing("x"), false},
		{"the second", nil, sharing("x"), true},
		{"both again", sharing("x"), sharing("x"), false},
	} {
		one := r.bundle("one", tc.one, configMap("x", "k: one"))
		two := r.bundle("two", tc.two, configMap("x", "k: two"))
		two = yieldingTo(two, "one", 2, 0)
		r.set([]fleet.Sync{one, two})
		r.ready(one)
		if tc.conflicted {
			r.wait("two", "in conflict: "+tc.what, func(x fleet.SyncStatus) bool {
				return x.Generation == two.Generation && x.Reason == "Conflict" && strings.Contains(x.Message, "belongs to module one")
			})
		} else {
			r.shares("two", "one", two)
			r.says(r.preview(two), "1 unchanged")
		}
		r.is("x", "one")
	}
}

// The health of a shared object is that of all who share it, and one that somebody deletes is made again by its owner.
func TestHealthOfASharedObject(t *testing.T) {
	r := newRig(t)
	one := r.gated(r.bundle("one", sharing("web"), gate("web", "1")))
	two := yieldingTo(r.gated(r.bundle("two", sharing("web"), gate("web", "1"))), "one", 2, 0)
	r.set([]fleet.Sync{one, two})
	x := r.wait("two", "progressing", func(x fleet.SyncStatus) bool {
		return x.Generation == two.Generation && x.Phase == fleet.PhaseApplied && x.States[0].Health == fleet.HealthProgressing
	})
	if x.Ready {
		t.Errorf("%+v", x)
	}
	r.sets("web", "1")
	r.ready(one)
	r.shares("two", "one", two)
}

// Wherever the agent is killed while a shared object goes from one module to the next, it is never made anew, and ends with the content of
// who has it.
func TestKilledAnywhereSharing(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		var uid types.UID
		one := r.bundle("one", sharing("x"), configMap("x", "k: one"), configMap("other", "k: v"))
		two := yieldingTo(r.bundle("two", sharing("x"), configMap("x", "k: two")), "one", 2, 0)
		three := yieldingTo(r.bundle("three", sharing("x"), configMap("x", "k: three")), "one", 3, 0)
		less := r.bundle("one", sharing("x"), configMap("other", "k: v"))
		second, third, last := two, yieldingTo(three, "two", 3, 0), three
		second.Yields, last.Yields = nil, nil
		gone, end := r.tombstone("two", fleet.DeleteDelete), r.tombstone("three", fleet.DeleteDelete)
		live([]life{
			{"all share it", func() { r.set([]fleet.Sync{one, two, three}) }, map[string]string{"x": "one", "other": "v"}, "three", isReady(three)},
			{"the first lets it go", func() { r.set([]fleet.Sync{less, second, third}) }, map[string]string{"x": "two", "other": "v"}, "two", isReady(second)},
			{"the second goes", func() { r.set([]fleet.Sync{less, last}, gone) }, map[string]string{"x": "three", "other": "v"}, "two", isRemoved},
			{"the last one goes", func() { r.set([]fleet.Sync{less}, gone, end) }, map[string]string{"other": "v"}, "three", isRemoved},
		}, r.ours, func(l life) {
			if now := r.get("v1", "configmaps", "x"); now != nil {
				if uid != "" && uid != now.GetUID() {
					r.t.Errorf("%s: it was made anew", l.what)
				}
				uid = now.GetUID()
			}
		})
	})
}
