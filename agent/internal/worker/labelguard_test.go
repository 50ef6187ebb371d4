package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// tiered are twenty objects of which twelve have a label.
func tiered(tier string) (out []string) {
	for i := range 20 {
		o := configMap(fmt.Sprintf("cm-%02d", i), "k: v")
		if i < 12 {
			o = strings.Replace(o, "namespace: $NS", "namespace: $NS, labels: {tier: "+tier+"}", 1)
		}
		out = append(out, o)
	}
	return out
}

func ofTier(tier string, p fleet.Policy) fleet.Policy {
	p.Match.Labels = &fleet.Selector{MatchLabels: map[string]string{"tier": tier}}
	return p
}

// TestWhatLabelsKeepNeedsNoConfirm: a revision drops most of a module, and policies by labels keep all of that: there is nothing to confirm,
// and a later revision that drops one object more waits for nobody.
func TestWhatLabelsKeepNeedsNoConfirm(t *testing.T) {
	for name, policies := range map[string][]fleet.Policy{
		"alone":                    {ofTier("db", fleet.Policy{Prune: fleet.PruneNever})},
		"before a rule":            {ofTier("db", fleet.Policy{Prune: fleet.PruneNever}), {Prune: fleet.PruneOnUpdate}},
		"until their tracker goes": {ofTier("db", fleet.Policy{KeepLegacy: new(true)}), {KeepLegacy: new(false)}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			objects := tiered("db")
			s := r.bundle("shop", policies, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			s = r.bundle("shop", policies, objects[12:]...)
			r.set([]fleet.Sync{s})
			status := r.wait("shop", "settled", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && len(x.Extras) == 12 })
			if status.Waiting() != 0 {
				t.Errorf("%d wait for a confirm", status.Waiting())
			}
			for _, x := range r.m.inventory.Module(moduleOf("shop")[0]) {
				if x.Goes() {
					t.Errorf("%s is noted to go", x.ID)
				}
			}
			s = r.bundle("shop", policies, objects[13:]...)
			r.set([]fleet.Sync{s})
			status = r.wait("shop", "settled again", func(x fleet.SyncStatus) bool {
				return x.Generation == s.Generation && x.Ready && (x.Waiting() > 0 || r.get("v1", "configmaps", "cm-12") == nil)
			})
			if status.Waiting() != 0 || r.configMaps() != 19 {
				t.Errorf("%d are left, %d wait for a confirm", r.configMaps(), status.Waiting())
			}
		})
	}
}

// TestWhatLabelsLetGoGoes: an exception by labels from a rule that keeps all lets what has them go, with a revision as with the module.
func TestWhatLabelsLetGoGoes(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{ofTier("cache", fleet.Policy{Prune: fleet.PruneOnUpdate}), {Prune: fleet.PruneNever}}
	cache := strings.Replace(configMap("cache", "k: v"), "namespace: $NS", "namespace: $NS, labels: {tier: cache}", 1)
	s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"), cache)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", policies, configMap("a", "k: v"))
	if said := r.said(r.preview(next)); !slices.ContainsFunc(said, func(x string) bool { return strings.Contains(x, "cache") && strings.Contains(x, fleet.PreviewDelete) }) {
		t.Errorf("a preview says %v", said)
	}
	r.set([]fleet.Sync{next})
	r.eventually("it is gone", func() bool { return r.get("v1", "configmaps", "cache") == nil })
	r.wait("shop", "settled", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Ready && slices.Equal(names(x.Extras, plan.ReasonKept), []string{"b"})
	})
}

// TestWhatIsKeptAfterAllIsAskedAbout: a person confirmed that most of a module goes, which waits for what goes first; a revision keeps it
// all, and one after that lets it go: nobody has confirmed that.
func TestWhatIsKeptAfterAllIsAskedAbout(t *testing.T) {
	r := newRig(t)
	first := strings.Replace(configMap("first", "k: v"), "namespace: $NS", "namespace: $NS, finalizers: [example.com/later], annotations: {"+fleet.WaveAnnotation+": '1'}", 1)
	objects := tiered("db")
	s := r.bundle("shop", nil, append(objects, first)...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	drops := r.bundle("shop", nil, objects[16:]...)
	r.set([]fleet.Sync{drops})
	r.wait("shop", "asks", func(x fleet.SyncStatus) bool { return x.Generation == drops.Generation && x.Waiting() == 17 })
	drops.PruneConfirmed = true
	r.set([]fleet.Sync{drops})
	r.wait("shop", "waiting for what goes first", func(x fleet.SyncStatus) bool {
		return x.Generation == drops.Generation && strings.Contains(fmt.Sprint(x.Extras), "example.com/later")
	})
	keeps := r.bundle("shop", []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"ConfigMap"}}, Prune: fleet.PruneNever}}, objects[16:]...)
	r.set([]fleet.Sync{keeps})
	r.wait("shop", "keeps all", func(x fleet.SyncStatus) bool {
		return x.Generation == keeps.Generation && x.Ready && len(names(x.Extras, plan.ReasonKept)) >= 16
	})
	r.patch("v1", "configmaps", "first", "operator", `{"metadata":{"finalizers":null}}`)
	r.eventually("what was on its way out is gone", func() bool { return r.get("v1", "configmaps", "first") == nil })
	again := r.bundle("shop", []fleet.Policy{{Prune: fleet.PruneOnUpdate}}, objects[16:]...)
	r.set([]fleet.Sync{again})
	status := r.wait("shop", "settled", func(x fleet.SyncStatus) bool {
		return x.Generation == again.Generation && x.Ready && (x.Waiting() > 0 || r.configMaps() < 20)
	})
	if r.configMaps() != 20 || status.Waiting() != 16 {
		t.Errorf("%d are left, %d wait for a confirm", r.configMaps(), status.Waiting())
	}
}

// TestUnreadLabelKeepsAnObjectFromAnotherModulesOwner: two modules go at once, and one has the owner of what the other has, which a label
// keeps that cannot be read for a while.
func TestUnreadLabelKeepsAnObjectFromAnotherModulesOwner(t *testing.T) {
	r := newRig(t)
	policies := keptBy(fleet.Policy{Prune: fleet.PruneNever})
	s, base := r.bundle("shop", policies, certificate("b2xk")), r.bundle("base", nil, configMap("owner", "k: v"))
	r.set([]fleet.Sync{s, base})
	r.ready(s)
	r.ready(base)
	uid := r.uidOf("v1", "secrets", "s")
	r.patch("v1", "secrets", "s", "ana", `{"metadata":{"labels":{"keep":"yes"}}}`)
	r.ownedBy("secrets", "s", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/secrets/s") {
			return errors.New("not now")
		}
		return nil
	})
	tomb := r.tombstoneOf(policies)
	r.set([]fleet.Sync{base}, tomb)
	r.eventually("its end is decided", func() bool {
		rec := r.m.inventory.Get(fleet.ObjectID{Kind: "Secret", Namespace: r.ns, Name: "s"})
		return rec != nil && rec.Goes()
	})
	r.set(nil, tomb, r.tombstone("base", fleet.DeleteDelete))
	r.wait("base", "gone, or waiting", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "would go with it")
	})
	r.count.upset(nil)
	for _, m := range []string{"base", "shop"} {
		r.wait(m, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	}
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("it is another one, or gone: %q was %q", got, uid)
	}
}

// TestLabelsOfWhatIsKeptAreReadOnce: a policy lets go what has a label, and keeps all else. Which of that an object is, is not read for each
// revision again.
func TestLabelsOfWhatIsKeptAreReadOnce(t *testing.T) {
	r := newRig(t)
	policies := append(keptBy(fleet.Policy{Prune: fleet.PruneOnUpdate}), fleet.Policy{Prune: fleet.PruneNever})
	s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("kept", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for i := range 3 {
		if i > 0 {
			r.count.take()
		}
		s = r.bundle("shop", policies, configMap("a", fmt.Sprintf("k: v%d", i)))
		r.set([]fleet.Sync{s})
		r.wait("shop", "it is kept", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation && len(x.Extras) == 1 })
	}
	_, paths := r.count.take()
	if slices.ContainsFunc(paths, func(p string) bool { return strings.HasSuffix(p, "/configmaps/kept") }) {
		t.Errorf("read again: %v", paths)
	}
}

// TestLabelThatKeepsAnObjectWhenItsModuleGoes: somebody labels a live object so that a policy keeps or leaves it, and the module goes while
// it lists the object, or its cluster leaves the fleet. It stays also where its owner goes.
func TestLabelThatKeepsAnObjectWhenItsModuleGoes(t *testing.T) {
	for name, policy := range map[string]fleet.Policy{"kept": {Prune: fleet.PruneNever}, "left": {Delete: fleet.DeleteOrphan}} {
		for how, leave := range map[string]bool{"the module goes": false, "the cluster leaves": true, "the first look fails": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRig(t)
				policies := keptBy(policy)
				s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				uid := r.uidOf("v1", "secrets", "s")
				r.patch("v1", "secrets", "s", "ana", `{"metadata":{"labels":{"keep":"yes"}}}`)
				r.ownedBy("secrets", "s", "owner")
				r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
				var fails atomic.Bool
				fails.Store(strings.Contains(how, "fails"))
				r.count.upset(func(q *http.Request) error {
					if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/secrets/s") && fails.CompareAndSwap(true, false) {
						return errors.New("not now")
					}
					return nil
				})
				if leave {
					r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
				} else {
					r.set(nil, r.tombstoneOf(policies))
				}
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
				r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
				r.collected()
				if got := r.uidOf("v1", "secrets", "s"); got != uid {
					t.Errorf("it is another one, or gone: %q was %q", got, uid)
				}
				if r.get("v1", "configmaps", "a") != nil {
					t.Error("what no policy keeps is left")
				}
			})
		}
	}
}

// TestPolicyByALabelThatAValueMakes: a policy goes by the labels that an object has in the cluster, also where a value makes them.
func TestPolicyByALabelThatAValueMakes(t *testing.T) {
	r := newRig(t)
	labelled := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: $NS, labels: {env: \"${ENV}\"}}\ndata: {k: v}\n"
	}
	s := r.bundle("shop", []fleet.Policy{{Match: fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"env": "prod"}}}, Drift: fleet.DriftReport}}, labelled("a"))
	s.Values = map[string]string{"ENV": "prod"}
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.edit("a")
	x := r.wait("shop", "told or corrected", func(x fleet.SyncStatus) bool { return x.Corrections > 0 || x.States[0].Drift == fleet.DriftDrifted })
	if x.Corrections > 0 || r.data("a", "k") != "edited" {
		t.Errorf("it was written back in prod: %+v", x)
	}
}
