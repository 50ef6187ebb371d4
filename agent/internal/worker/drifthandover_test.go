package worker

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// TestDriftThatIsLeftGoesAlong: an object that a policy leaves as others changed it goes to another module, which lists it as the first one did. It
// carries that module's marks, and stays as it is: no revision changed it. One that does has its way.
func TestDriftThatIsLeftGoesAlong(t *testing.T) {
	config := labConfig(t)
	for drift, said := range map[string]fleet.Drift{fleet.DriftReport: fleet.DriftDrifted, fleet.DriftIgnore: fleet.DriftIgnored} {
		for name, change := range map[string]string{"changed": `{"data":{"k":"edited"}}`, "taken away": `{"data":{"k":null}}`} {
			t.Run(fmt.Sprintf("%s, %s", drift, name), func(t *testing.T) {
				t.Parallel()
				r := newRigOn(t, rest.CopyConfig(config))
				policies := []fleet.Policy{{Drift: drift}}
				rest, is := configMap("rest", "k: v"), map[string]string{"changed": "edited", "taken away": "<nil>"}[name]
				r.becomes(policies, rest, configMap("tuning", "k: v, own: v"))
				r.patch("v1", "configmaps", "tuning", "somebody", change)
				drifts := func(at int) func(fleet.SyncStatus) bool {
					return func(x fleet.SyncStatus) bool {
						return x.Phase == fleet.PhaseApplied && len(x.States) > at && x.States[at].Drift == said
					}
				}
				r.wait("shop", "drifted", drifts(1))
				shop := r.bundle("shop", policies, rest)
				r.set([]fleet.Sync{shop, r.bundle("other", policies, configMap("tuning", "k: v, own: v"))})
				r.wait("other", "drifted", drifts(0))
				r.is("tuning", is)
				of, _, _ := fleet.ParseOwnerMark(r.get("v1", "configmaps", "tuning").GetAnnotations()[fleet.OwnerAnnotation])
				if of.Name != "other" || r.data("tuning", "own") != "v" {
					t.Errorf("it is marked for %s, and holds %s", of, r.data("tuning", "own"))
				}
				r.stop()
				r.start()
				r.set(r.current.Syncs)
				r.wait("other", "drifted after a restart", drifts(0))
				r.is("tuning", is)
				next := r.bundle("other", policies, configMap("tuning", "k: w"))
				r.set([]fleet.Sync{shop, next})
				r.ready(next)
				r.is("tuning", "w")
				if got := r.data("tuning", "own"); got != "<gone>" && got != "<nil>" && got != "" {
					t.Errorf("what the revision drops holds %s", got)
				}
			})
		}
	}
}

// TestImageThatIsLeftGoesAlong: the same of a field in an item of a list, of which the rest is the module's.
func TestImageThatIsLeftGoesAlong(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Drift: fleet.DriftReport}}
	r.becomes(policies, configMap("rest", "k: v"), sized("nginx:1", "100m", "1"))
	r.json("kubectl-set", `{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"nginx:9"}`)
	r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return len(x.States) == 2 && x.States[1].Drift == fleet.DriftDrifted })
	r.set([]fleet.Sync{r.bundle("shop", policies, configMap("rest", "k: v")), r.bundle("other", policies, sized("nginx:1", "100m", "1"))})
	x := r.wait("other", "drifted", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && len(x.States) == 1 && x.States[0].Drift == fleet.DriftDrifted
	})
	if got := r.web(); got.image != "nginx:9" || got.cpu != "100m" || len(x.Exceptions) != 1 || x.Exceptions[0].ChangedBy != "kubectl-set" {
		t.Errorf("it is %+v; said %+v", got, x.Exceptions)
	}
	next := r.bundle("other", policies, sized("nginx:2", "100m", "1"))
	r.set([]fleet.Sync{next})
	r.eventually("a revision has its way", func() bool { return r.web().image == "nginx:2" })
}

// TestWhoGaveDriftThatIsLeftIsTold: an object of a custom kind that a policy leaves as others changed it, and that never gets ready, goes to another
// module as it is. Nothing is left of it that was made otherwise: what its first module drops beside it goes, though nothing happens after that.
func TestWhoGaveDriftThatIsLeftIsTold(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Drift: fleet.DriftReport}}
	kind := r.bundle("kind", nil, databaseKind)
	r.set([]fleet.Sync{kind})
	r.ready(kind)
	one := r.bundle("one", policies, configMap("db-1", "k: v"), configMap("rest", "k: v"), databaseOf("db-1", "a: b"))
	r.set([]fleet.Sync{kind, one})
	r.wait("one", "applied", func(x fleet.SyncStatus) bool { return x.Generation == one.Generation && x.Phase == fleet.PhaseApplied })
	r.patch(r.ns+".example.com/v1", "databases", "db", "operator", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"NoStorage","message":"none"}]}}`, "status")
	r.patch(r.ns+".example.com/v1", "databases", "db", "somebody", `{"metadata":{"annotations":{"a":"edited"}}}`)
	r.wait("one", "drifted and not ready", func(x fleet.SyncStatus) bool {
		return !x.Ready && len(x.States) == 3 && x.States[2].Drift == fleet.DriftDrifted
	})
	r.set([]fleet.Sync{kind, r.bundle("one", policies, configMap("rest", "k: v")), r.bundle("two", policies, databaseOf("db-1", "a: b"))})
	r.wait("two", "drifted", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && len(x.States) == 1 && x.States[0].Drift == fleet.DriftDrifted
	})
	r.eventually("what nothing uses goes", func() bool { return r.get("v1", "configmaps", "db-1") == nil })
	r.wait("one", "done", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 && x.Reason == "" })
}
