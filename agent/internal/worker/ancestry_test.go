package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// between puts an object that nobody manages between an owner and what goes with it: owner, middle, object.
func (r *rig) between(owner, middle, resource, name string) {
	r.t.Helper()
	r.createAs("operator", "v1", "configmaps", r.ns, r.configMapObject(middle, nil, map[string]any{"k": "v"}))
	r.ownedBy("configmaps", middle, owner)
	r.ownedBy(resource, name, middle)
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) > 0 })
}

// TestObjectOutlivesAnOwnerOfItsOwner: what a module lists, keeps or leaves has an owner that nobody manages, or that is dropped as
// well, and that goes with what is dropped. The garbage collector would delete one after the other.
func TestObjectOutlivesAnOwnerOfItsOwner(t *testing.T) {
	secrets := func(p fleet.Policy) []fleet.Policy {
		p.Match.Kinds = []string{"Secret"}
		return []fleet.Policy{p}
	}
	for name, tc := range map[string]struct {
		policies            []fleet.Policy
		ours, drops, delete bool
	}{
		"is listed":                       {},
		"is listed, the middle is ours":   {ours: true},
		"is kept":                         {policies: secrets(fleet.Policy{Prune: fleet.PruneNever}), drops: true},
		"is left":                         {policies: secrets(fleet.Policy{Delete: fleet.DeleteOrphan}), delete: true},
		"is left, and the middle is ours": {policies: secrets(fleet.Policy{Delete: fleet.DeleteOrphan}), delete: true, ours: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			list := []string{configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk")}
			if tc.ours {
				list = append(list, configMap("middle", "k: v"))
			}
			s := r.bundle("shop", tc.policies, list...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.uidOf("v1", "secrets", "s")
			if tc.ours {
				r.ownedBy("configmaps", "middle", "owner")
				r.ownedBy("secrets", "s", "middle")
				r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 2 })
			} else {
				r.between("owner", "middle", "secrets", "s")
			}
			switch {
			case tc.delete:
				r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			case tc.drops:
				r.set([]fleet.Sync{r.bundle("shop", tc.policies, configMap("a", "k: v"))})
			default:
				r.set([]fleet.Sync{r.bundle("shop", nil, configMap("a", "k: v"), certificate("b2xk"))})
			}
			r.outlives(uid, "owner", "middle")
		})
	}
}

// TestOwnerOfAnOwnerThatCannotBeSeen: nobody knows whether what a module lists would go with what it drops. It is waited for.
func TestOwnerOfAnOwnerThatCannotBeSeen(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.between("owner", "middle", "secrets", "s")
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps/middle") {
			return errors.New("not now")
		}
		return nil
	})
	next := r.bundle("shop", nil, configMap("a", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "stuck with the owner", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "cannot be seen whether Secret s would go with it")
	})
	r.count.upset(nil)
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "middle") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerOfAnOwnerThatOneAPIServerDoesNotServe: the API server that is asked for the owner's owner does not serve its kind, which is Kubernetes' own,
// as another one does in an upgrade. That says nothing of the owner.
func TestOwnerOfAnOwnerThatOneAPIServerDoesNotServe(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.create("policy/v1", "poddisruptionbudgets", r.ns, map[string]any{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{
		"name": "middle", "ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": string(r.uidOf("v1", "configmaps", "owner"))}}},
		"spec": map[string]any{"maxUnavailable": int64(1)}})
	r.patch("v1", "secrets", "s", "operator", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","name":"middle","uid":%q}]}}`,
		r.uidOf("policy/v1", "poddisruptionbudgets", "middle")))
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) > 0 })
	r.count.upset(func(q *http.Request) error {
		switch {
		case q.URL.Path == "/apis":
			return inPlace{http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`}
		case strings.HasPrefix(q.URL.Path, "/apis/policy"):
			return inPlace{http.StatusNotFound, "404 page not found\n"}
		}
		return nil
	})
	next := r.bundle("shop", nil, configMap("a", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "the API server does not serve its kind now") || r.get("v1", "configmaps", "owner") == nil)
	})
	r.count.upset(nil)
	r.eventually("the owner is gone", func() bool { return r.get("policy/v1", "poddisruptionbudgets", "middle") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerOfAnOwnerIsNotMadeAgain: an object would take along what a module lists when it is made again, over one that nobody manages.
func TestOwnerOfAnOwnerIsNotMadeAgain(t *testing.T) {
	r := newRig(t)
	frozen := func(v string) string { return configMap("owner", "k: "+v) + "immutable: true\n" }
	s := r.bundle("shop", recreate, frozen("v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	owner := r.uidOf("v1", "configmaps", "owner")
	r.between("owner", "middle", "secrets", "s")
	if x := r.failed(func() fleet.Sync {
		next := r.bundle("shop", recreate, frozen("w"), certificate("b2xk"))
		r.set([]fleet.Sync{next})
		return next
	}()); !strings.Contains(x.Message, "these would go with it: Secret s") || r.uidOf("v1", "configmaps", "owner") != owner {
		t.Errorf("status %+v", x)
	}
}

// TestNobodyAsksForOwnersWhileAnObjectIsOnItsWayOut: an object that waits for a finalizer is not deleted again, so that nobody reads
// the owners of what stays beside it each time that somebody looks.
func TestNobodyAsksForOwnersWhileAnObjectIsOnItsWayOut(t *testing.T) {
	const finalizers = "finalizers: [example.com/later]"
	for name, tt := range map[string]struct {
		resource, stuck string
		later           []string
	}{
		"alone": {"configmaps", strings.Replace(configMap("stuck", "k: v"), "name: stuck", "name: stuck, "+finalizers, 1), nil},
		"others go after it": {"services", "{apiVersion: v1, kind: Service, metadata: {name: stuck, namespace: $NS, " + finalizers + "}, spec: {ports: [{port: 80}]}}",
			[]string{configMap("later", "k: v")}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			stays := []string{configMap("a", "k: v"), certificate("b2xk")}
			s := r.bundle("shop", nil, slices.Concat(stays, tt.later, []string{tt.stuck})...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			t.Cleanup(func() { r.patch("v1", tt.resource, "stuck", "operator", `{"metadata":{"finalizers":null}}`) })
			r.createAs("operator", "v1", "configmaps", r.ns, r.configMapObject("owner", nil, map[string]any{"k": "v"}))
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) > 0 })
			r.set([]fleet.Sync{r.bundle("shop", nil, stays...)})
			r.wait("shop", "on its way out", func(x fleet.SyncStatus) bool {
				return slices.ContainsFunc(x.Extras, func(x fleet.ExtraObject) bool { return strings.Contains(x.Message, "example.com/later") })
			})
			r.count.take()
			looks, asked := 0, map[string]int{}
			r.eventually("it was looked at again", func() bool {
				_, paths := r.count.take()
				for _, p := range paths {
					switch {
					case strings.HasSuffix(p, "/"+tt.resource+"/stuck"):
						looks++
					case strings.HasSuffix(p, "/configmaps/owner"), strings.HasSuffix(p, "/namespaces/"+r.ns+"/secrets"), strings.HasSuffix(p, "/namespaces/"+r.ns+"/configmaps"):
						asked[p]++
					}
				}
				return looks >= 3
			})
			if len(asked) > 0 {
				t.Errorf("what owns what stays was asked for: %v", asked)
			}
		})
	}
}

// TestOwnerThatIsOwnedSinceTheStageBefore: what a module lists has an owner that nobody manages, and that gets an owner which a revision drops while
// what goes before that is deleted. The garbage collector would delete one after the other.
func TestOwnerThatIsOwnedSinceTheStageBefore(t *testing.T) {
	r, p := newRig(t), newPause()
	r.stop()
	r.answers(func(q *http.Request) *http.Response {
		if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/services/db") {
			p.wait()
		}
		return nil
	})
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("owner", "k: v"), selectorless, certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.createAs("operator", "v1", "configmaps", r.ns, r.configMapObject("middle", nil, map[string]any{"k": "v"}))
	r.ownedBy("secrets", "s", "middle")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) > 0 })
	r.set([]fleet.Sync{r.bundle("shop", nil, configMap("a", "k: v"), certificate("b2xk"))})
	p.at(r, func() { r.ownedBy("configmaps", "middle", "owner") })
	r.outlives(uid, "owner", "middle")
}

// outlives says that the Secret stays as it was, and owned by nobody, when what owned it has gone.
func (r *rig) outlives(uid types.UID, owners ...string) {
	r.t.Helper()
	for _, name := range owners {
		r.eventually(name+" is gone", func() bool { return r.get("v1", "configmaps", name) == nil })
	}
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		r.t.Errorf("the secret is another one, or gone: %q was %q", got, uid)
	}
	if owners := fmt.Sprint(r.get("v1", "secrets", "s").GetOwnerReferences()); owners != "[]" {
		r.t.Errorf("owners %v", owners)
	}
}
