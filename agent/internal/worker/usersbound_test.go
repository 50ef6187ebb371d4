package worker

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

const databaseKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: databases.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Namespaced
  names: {kind: Database, plural: databases}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

func databaseOf(config, note string) string {
	return "\napiVersion: $NS.example.com/v1\nkind: Database\nmetadata: {name: db, namespace: $NS, annotations: {" + note + "}}\nspec: {config: " + config + "}\n"
}

// TestCustomObjectThatMovesUnready: an object of a custom kind goes to another module, and never gets ready there. As its first module had it it
// is made by nothing else than before, and nobody waits for it. Where its new module changes it, its operator may not be through: whoever let it
// go waits, says for whom and how that ends, and it ends so.
func TestCustomObjectThatMovesUnready(t *testing.T) {
	for name, tc := range map[string]struct {
		config         string
		removed, waits bool
	}{
		"as it is, and its module drops the rest":      {"db-1", false, false},
		"as it is, and its module is removed":          {"db-1", true, false},
		"as another, and its module drops what it had": {"db-2", false, true},
		"as another, and its module is removed":        {"db-2", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			kind := r.bundle("kind", nil, databaseKind)
			r.set([]fleet.Sync{kind})
			r.ready(kind)
			one := r.bundle("one", nil, configMap("db-1", "k: v"), configMap("rest", "k: v"), databaseOf("db-1", "a: b"))
			r.set([]fleet.Sync{kind, one})
			r.wait("one", "applied", func(x fleet.SyncStatus) bool { return x.Generation == one.Generation && x.Phase == fleet.PhaseApplied })
			r.patch(r.ns+".example.com/v1", "databases", "db", "operator", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"NoStorage","message":"none"}]}}`, "status")
			r.wait("one", "not ready", func(x fleet.SyncStatus) bool { return x.Generation == one.Generation && !x.Ready })

			move := func(note string) {
				r.t.Helper()
				syncs, dead := []fleet.Sync{kind, r.inWaves("two", 1, databaseOf(tc.config, note))}, []fleet.Tombstone(nil)
				if tc.removed {
					dead = append(dead, r.tombstone("one", fleet.DeleteDelete))
				} else {
					syncs = append(syncs, r.bundle("one", nil, configMap("rest", "k: v")))
				}
				r.set(syncs, dead...)
			}
			move("a: b")
			gone := func() bool { return r.get("v1", "configmaps", "db-1") == nil }
			if tc.waits {
				r.wait("one", "waiting, with a way out", func(x fleet.SyncStatus) bool {
					return x.Reason == plan.ReasonAwaitingUpdate && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool { // the module's own message is clipped
						return strings.Contains(e.Message, "/db of module two is not ready there ("+fleet.ReadyAnnotation+": "+fleet.ReadyIgnore+" ")
					})
				})
				if gone() {
					t.Fatal("what the operator may use still is gone")
				}
				move(fleet.ReadyAnnotation + ": " + fleet.ReadyIgnore)
			}
			r.eventually("what nothing uses goes", gone)
			r.wait("one", "done", func(x fleet.SyncStatus) bool {
				return len(x.Extras) == 0 && (x.Phase == fleet.PhaseRemoved || x.Ready && x.Reason == "")
			})
		})
	}
}

// TestWhoWasGivenAWorkloadBegins: a workload goes from a module that is removed to one that depends on it, at once or by way of a third. That one
// would wait for the removal, and the removal for it: it begins, what the pods of before use stays until they are gone, and the removal ends.
func TestWhoWasGivenAWorkloadBegins(t *testing.T) {
	for _, by := range []string{"one", "three"} {
		t.Run(by, func(t *testing.T) {
			r := newRig(t)
			one := r.bundle("one", nil, webUsing("web-1", fine)...)
			r.set([]fleet.Sync{one})
			r.ready(one)
			r.eventually("its pods run", func() bool { return r.ofConfig("web-1") == 2 })
			on := func(name string) []fleet.ModuleRef { return []fleet.ModuleRef{{Project: "default", Name: name}} }
			two, three := r.bundle("two", nil, webUsing("web-2", fine)...), r.bundle("three", nil, configMap("base", "k: v"))
			two.DependsOn, three.DependsOn = on(by), on("one")
			r.set([]fleet.Sync{two, three}, r.tombstone("one", fleet.DeleteDelete))
			r.eventually("it is removed when its pods are through", func() bool {
				r.noneUsedIsGone()
				return r.get("v1", "configmaps", "web-1") == nil
			})
			r.wait("one", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("v1", "configmaps", "web-2") == nil || r.ofConfig("web-2") == 0 {
				t.Error("module two has not begun")
			}
		})
	}
}

// TestWhoWasGivenAWorkloadBeginsBeforeWhatItNeedsIsGone: two modules are removed, of which one depends on the other, and the workload of the upper
// goes to a third one that depends on the lower. All three would wait for each other: the third begins, what its old pods use stays until they
// are gone, and the lower goes last.
func TestWhoWasGivenAWorkloadBeginsBeforeWhatItNeedsIsGone(t *testing.T) {
	r := newRig(t)
	base, one, two := r.bundle("base", nil, configMap("base", "k: v")), r.bundle("one", nil, webUsing("web-1", fine)...), r.bundle("two", nil, webUsing("web-2", fine)...)
	one.DependsOn, two.DependsOn = moduleOf("base"), moduleOf("base")
	r.set([]fleet.Sync{base, one})
	r.ready(one)
	r.eventually("its pods run", func() bool { return r.ofConfig("web-1") == 2 })
	upper := r.tombstone("one", fleet.DeleteDelete)
	upper.DependsOn = one.DependsOn
	r.set([]fleet.Sync{two}, upper, r.tombstone("base", fleet.DeleteDelete))
	r.eventually("it is removed when its pods are through", func() bool {
		r.noneUsedIsGone()
		there := r.get("v1", "configmaps", "web-1") != nil
		if there && r.get("v1", "configmaps", "base") == nil && r.get("v1", "configmaps", "web-1") != nil {
			t.Fatal("the lower module went before the upper one was gone")
		}
		return !there
	})
	r.wait("one", "removed", isRemoved)
	r.wait("base", "removed", isRemoved)
	if r.get("v1", "configmaps", "web-2") == nil || r.ofConfig("web-2") == 0 {
		t.Error("module two has not begun")
	}
}

// TestWhoDependsOnWhatIsGoneWaitsForItToComeAnew: the workload of a module goes to another one, which depends on that; nothing else of it is left,
// so that its removal is over at once, and holds up nobody. The other one begins when the first is there anew.
func TestWhoDependsOnWhatIsGoneWaitsForItToComeAnew(t *testing.T) {
	r := newRig(t)
	config, base := r.bundle("config", nil, configMap("web-1", "k: v")), r.bundle("base", nil, webUsing("web-1", fine)[1])
	r.set([]fleet.Sync{config, base})
	r.ready(base)
	app := r.bundle("app", nil, webUsing("web-2", fine)...)
	app.DependsOn = moduleOf("base")
	r.set([]fleet.Sync{config, app}, r.tombstone("base", fleet.DeleteDelete))
	r.wait("base", "removed", isRemoved)
	r.wait("app", "waiting for base", func(x fleet.SyncStatus) bool { return x.Reason == plan.ReasonAwaitingDependency })
	if r.get("v1", "configmaps", "web-2") != nil {
		t.Error("it has begun, and what is to come first is not here")
	}
	r.set([]fleet.Sync{config, app, r.bundle("base", nil, configMap("base", "k: v"))})
	r.ready(app)
}
