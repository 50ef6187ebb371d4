package worker

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// keptBy is a policy for what is labelled to be kept.
func keptBy(p fleet.Policy) []fleet.Policy {
	p.Match.Labels = &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}
	return []fleet.Policy{p}
}

// TestObjectThatItsLabelKeepsOutlivesItsOwner: a revision drops an object together with its owner, and a policy keeps the object by a
// label, which is known only when the live object is looked at; or an earlier revision dropped it, and one after that keeps it.
func TestObjectThatItsLabelKeepsOutlivesItsOwner(t *testing.T) {
	labelled := strings.Replace(certificate("b2xk"), "namespace: $NS", "namespace: $NS, labels: {keep: 'yes'}", 1)
	for name, tc := range map[string]struct {
		object   string
		policies []fleet.Policy
		label    bool // somebody sets it afterwards
		other    bool // another module has the owner
	}{
		"the manifest says it":          {object: labelled, policies: keptBy(fleet.Policy{Prune: fleet.PruneNever})},
		"somebody says it":              {object: certificate("b2xk"), policies: keptBy(fleet.Policy{Prune: fleet.PruneNever}), label: true},
		"until its tracker goes":        {object: certificate("b2xk"), policies: keptBy(fleet.Policy{KeepLegacy: new(true)}), label: true},
		"it is left":                    {object: labelled, policies: keptBy(fleet.Policy{Delete: fleet.DeleteOrphan})},
		"somebody says that it is left": {object: certificate("b2xk"), policies: keptBy(fleet.Policy{Delete: fleet.DeleteOrphan}), label: true},
		"its owner is another module's": {object: labelled, policies: keptBy(fleet.Policy{Prune: fleet.PruneNever}), other: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			owner := configMap("owner", "k: v")
			list := []fleet.Sync{r.bundle("shop", tc.policies, configMap("a", "k: v"), owner, tc.object)}
			if tc.other {
				list = []fleet.Sync{r.bundle("shop", tc.policies, configMap("a", "k: v"), tc.object), r.bundle("op", nil, configMap("b", "k: v"), owner)}
			}
			r.set(list)
			for _, s := range list {
				r.ready(s)
			}
			uid := r.uidOf("v1", "secrets", "s")
			if tc.label {
				r.patch("v1", "secrets", "s", "ana", `{"metadata":{"labels":{"keep":"yes"}}}`)
			}
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			next := []fleet.Sync{r.bundle("shop", tc.policies, configMap("a", "k: v"))}
			if tc.other {
				next = append(next, r.bundle("op", nil, configMap("b", "k: v")))
			}
			r.set(next)
			for _, s := range next {
				r.ready(s)
			}
			r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
			r.collected()
			if got := r.uidOf("v1", "secrets", "s"); got != uid {
				t.Errorf("the secret is another one, or gone: %q was %q", got, uid)
			}
		})
	}
}

// TestObjectThatIsKeptAfterAllOutlivesItsOwner: a revision drops an object, which waits for another one to go first; the next one keeps
// it, and lets its owner go.
func TestObjectThatIsKeptAfterAllOutlivesItsOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		heir     bool // the next revision has another module as its heir
		other    bool // another module has the owner
	}{
		"for an heir": {heir: true},
		"for an heir, and the owner is another's": {heir: true, other: true},
		"by a policy": {policies: []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Prune: fleet.PruneNever}}},
		"by a policy, and the owner is another's": {policies: []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Prune: fleet.PruneNever}}, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first := strings.Replace(configMap("first", "k: v"), "namespace: $NS", "namespace: $NS, finalizers: [example.com/later], annotations: {"+fleet.WaveAnnotation+": '1'}", 1)
			owner, rest := configMap("owner", "k: v"), []string{configMap("a", "k: v")}
			list := []fleet.Sync{r.bundle("shop", nil, append(rest, first, owner, certificate("b2xk"))...)}
			op := r.bundle("op", nil, configMap("b", "k: v"), owner)
			if tc.other {
				list = []fleet.Sync{r.bundle("shop", nil, append(rest, first, certificate("b2xk"))...), op}
			}
			r.set(list)
			for _, s := range list {
				r.ready(s)
			}
			uid := r.uidOf("v1", "secrets", "s")
			free := func() { r.patch("v1", "configmaps", "first", "operator", `{"metadata":{"finalizers":null}}`) }
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			also := []string{owner}
			if tc.other {
				also = nil
			}
			secret := fleet.ObjectID{Kind: "Secret", Namespace: r.ns, Name: "s"}
			drops := r.bundle("shop", nil, append(rest, also...)...)
			list[0] = drops
			r.set(list)
			r.wait("shop", "waiting for what goes first", func(x fleet.SyncStatus) bool {
				return x.Generation == drops.Generation && len(x.Extras) == 2 && strings.Contains(fmt.Sprint(x.Extras), "example.com/later")
			})
			if rec := r.m.inventory.Get(secret); rec == nil || !rec.Goes() {
				t.Fatalf("the test shows nothing: %+v", rec)
			}
			keeps := r.bundle("shop", tc.policies, rest...)
			if tc.heir {
				keeps.Heirs = []fleet.Heir{{Module: moduleOf("vault")[0], Keys: []uint64{assemble.HeirKey(secret)}}}
			}
			list[0] = keeps
			r.set(list)
			r.wait("shop", "keeps it", func(x fleet.SyncStatus) bool { return x.Generation == keeps.Generation })
			if tc.other {
				list[1] = r.bundle("op", nil, configMap("b", "k: v"))
				r.set(list)
			}
			free()
			r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
			r.collected()
			if got := r.uidOf("v1", "secrets", "s"); got != uid {
				t.Errorf("the secret is another one, or gone: %q was %q", got, uid)
			}
		})
	}
}

// TestLabelsOfAModuleThatGoesAreReadAnew: somebody labels an object to be kept, and deletes its module right after, while the watch of the kind does
// not work: what was read for the revision is not taken for what is there.
func TestLabelsOfAModuleThatGoesAreReadAnew(t *testing.T) {
	p := pruneState{labels: map[fleet.ObjectID]seenLabels{{Kind: "Secret", Name: "s"}: {uid: "u"}}}
	for kind, want := range map[targetKind]int{targetSync: 1, targetTombstone: 0} {
		if got := len(p.before(kind, true).labels); got != want {
			t.Errorf("target %v: %d labels are remembered, want %d", kind, got, want)
		}
	}
}
