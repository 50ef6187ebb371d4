package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

const fine, neverReady = "nginx:1", "never-ready:1"

// webUsing is a ConfigMap and a Deployment of two pods that take their environment from it.
func webUsing(config, image string) []string {
	return []string{configMap(config, "k: v"), fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NS}
spec:
  replicas: 2
  paused: false
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: %q, envFrom: [{configMapRef: {name: %s}}]}]}
`, image, config)}
}

// undo has the Deployment's template be one of before, as an edit does, or kubectl rollout undo, which takes an annotation that holds it away
// as well.
func (r *rig) undo(config string) {
	r.patch("apps/v1", "deployments", "web", "kubectl-rollout",
		`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"nginx:1","envFrom":[{"configMapRef":{"name":"`+config+`"}}]}]}}}}`)
}

// usedAndThere: pods run that use a ConfigMap, and it is there.
func (r *rig) usedAndThere(config string) {
	r.t.Helper()
	r.noneUsedIsGone()
	if r.ofConfig(config) == 0 {
		r.t.Errorf("no pod uses %s: the test shows nothing", config)
	}
	if r.get("v1", "configmaps", config) == nil {
		r.t.Errorf("%s is gone", config)
	}
}

// TestWorkloadThatIsTurnedBack: a revision does not get ready, and somebody takes the workload back in the cluster, where a policy or a hold
// leaves it so. The module is not ready by the pods of the revision before, so that no rollout goes on, and what they use stays.
func TestWorkloadThatIsTurnedBack(t *testing.T) {
	for name, tc := range map[string]struct {
		drift, kept fleet.Drift
		hold        string
	}{
		"drift: Report": {fleet.DriftReport, fleet.DriftDrifted, "null"},
		"drift: Ignore": {fleet.DriftIgnore, fleet.DriftIgnored, "null"},
		"held":          {fleet.DriftCorrect, fleet.DriftHeld, `"incident"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: string(tc.drift)}}
			s := r.bundle("shop", policies, webUsing("web-1", fine)...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			s = r.bundle("shop", policies, webUsing("web-2", neverReady)...)
			r.set([]fleet.Sync{s})
			r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
			hold := func(text string) {
				r.patch("apps/v1", "deployments", "web", "kubectl-annotate", `{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":`+text+`}}}`)
			}
			hold(tc.hold)
			r.undo("web-1")
			turnedBack := func() fleet.SyncStatus {
				return r.wait("shop", "healthy, and not as the revision says", func(x fleet.SyncStatus) bool {
					i := slices.IndexFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == tc.kept })
					return x.Generation == s.Generation && i >= 0 && x.States[i].Health == fleet.HealthHealthy
				})
			}
			for _, when := range []string{"at once", "after a start of the agent"} {
				if x := turnedBack(); x.Ready || !strings.Contains(x.Message, "was not ready before as the revision has it") {
					t.Errorf("%s: ready %t, %s: %s", when, x.Ready, x.Reason, x.Message)
				}
				r.usedAndThere("web-1")
				r.stop()
				r.start()
				r.set(r.current.Syncs)
			}
			hold("null")
			s = r.bundle("shop", policies, webUsing("web-3", fine)...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.eventually("what nothing uses goes", func() bool {
				r.noneUsedIsGone()
				return r.get("v1", "configmaps", "web-1") == nil && r.get("v1", "configmaps", "web-2") == nil
			})
		})
	}
}

// TestDriftOfWhatWasReady: what a policy leaves changed is no failure once the revision was ready; what is dropped waits while it may be used.
func TestDriftOfWhatWasReady(t *testing.T) {
	r := newRig(t)
	report := []fleet.Policy{{Drift: fleet.DriftReport}}
	s := r.bundle("shop", report, append(webUsing("web-2", fine), configMap("web-1", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("that it was ready is noted", func() bool { return r.m.inventory.Get(r.webID()).Before == [16]byte{} })
	r.undo("web-1")
	for range 2 {
		r.wait("shop", "ready, and said to differ", func(x fleet.SyncStatus) bool {
			return x.Ready && slices.ContainsFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == fleet.DriftDrifted })
		})
		r.stop()
		r.start()
		r.set(r.current.Syncs)
	}
	s = r.bundle("shop", report, webUsing("web-2", fine)...)
	r.set([]fleet.Sync{s})
	r.wait("shop", "ready, with web-1 kept", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == s.Generation && x.Reason == plan.ReasonAwaitingUpdate && strings.Contains(x.Message, "/web is not as the revision says")
	})
	r.usedAndThere("web-1")
	r.undo("web-2")
	r.eventually("it goes when the template is back", func() bool {
		r.noneUsedIsGone()
		return r.get("v1", "configmaps", "web-1") == nil
	})
}

func (r *rig) webID() fleet.ObjectID {
	return fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"}
}

// TestWorkloadThatMoves: a workload goes to another module, where its ConfigMap has another name. While its pods use the one of before, that
// stays, whether its module drops it or is removed, also with an agent that starts anew meanwhile.
func TestWorkloadThatMoves(t *testing.T) {
	for name, letGo := range map[string]func(*rig) ([]fleet.Sync, []fleet.Tombstone){
		"dropped": func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("one", nil, configMap("rest", "k: v"))}, nil
		},
		"removed": func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return nil, []fleet.Tombstone{r.tombstone("one", fleet.DeleteDelete)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one := r.bundle("one", nil, append(webUsing("web-1", fine), configMap("rest", "k: v"))...)
			r.set([]fleet.Sync{one})
			r.ready(one)
			two := webUsing("web-2", fine)
			two[1] = strings.ReplaceAll(two[1], "paused: false", "paused: true")
			syncs, tombstones := letGo(r)
			r.set(append(syncs, r.bundle("two", nil, two...)), tombstones...)
			for range 2 {
				r.wait("one", "waiting for the pods", func(x fleet.SyncStatus) bool {
					return x.Reason == plan.ReasonAwaitingUpdate && strings.Contains(x.Message, "/web of module two is not through with its update") && slices.Contains(names(x.Extras, plan.ReasonAwaitingUpdate), "web-1")
				})
				r.usedAndThere("web-1")
				r.stop()
				r.start()
				r.set(r.current.Syncs, r.current.Tombstones...)
			}
			two[1] = strings.ReplaceAll(two[1], "paused: true", "paused: false")
			r.set(append(syncs, r.bundle("two", nil, two...)), tombstones...)
			r.eventually("it goes when they are through", func() bool {
				r.noneUsedIsGone()
				return r.get("v1", "configmaps", "web-1") == nil
			})
			if r.get("apps/v1", "deployments", "web") == nil || r.get("v1", "configmaps", "web-2") == nil {
				t.Error("what went to the other module is gone")
			}
		})
	}
}

// TestWorkloadThatStays: a workload is dropped with what it uses, and stays: what it uses stays with it, and is said to.
func TestWorkloadThatStays(t *testing.T) {
	for name, keep := range map[string]func(*rig, *fleet.Sync){
		"held": func(r *rig, _ *fleet.Sync) {
			r.patch("apps/v1", "deployments", "web", "kubectl-annotate", `{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":"incident"}}}`)
			r.wait("one", "held", func(x fleet.SyncStatus) bool { return len(x.Holds) == 1 })
		},
		"protected": func(r *rig, _ *fleet.Sync) { r.accept("protected: [{kinds: [Deployment]}]") },
		"another module is to have it": func(r *rig, s *fleet.Sync) {
			s.Heirs = []fleet.Heir{{Module: fleet.ModuleRef{Project: "default", Name: "two"}, Keys: []uint64{assemble.HeirKey(r.webID())}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("one", nil, append(webUsing("web-1", fine), configMap("rest", "k: v"), configMap("gone", "k: v"))...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			s = r.bundle("one", nil, configMap("rest", "k: v"))
			keep(r, &s)
			r.set([]fleet.Sync{s})
			r.wait("one", "kept", func(x fleet.SyncStatus) bool {
				return x.Ready && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
					return e.ID.Name == "web-1" && strings.Contains(e.Message, "goes after Deployment.apps "+r.ns+"/web, which stays for now")
				})
			})
			r.usedAndThere("web-1")
		})
	}
}

// TestOldPodsOfWhatIsNotKnown: after a start of the agent nothing is known of a workload until its watch shows it. Though it does not count
// for whether the module is ready, its pods may use what the revision drops.
func TestOldPodsOfWhatIsNotKnown(t *testing.T) {
	r := newRig(t)
	revision := func(n int64, paused string) fleet.Sync {
		objects := webUsing(fmt.Sprintf("web-%d", n), fine)
		objects[1] = strings.ReplaceAll(annotated(objects[1], fleet.ReadyAnnotation, fleet.ReadyIgnore), "paused: false", "paused: "+paused)
		s := r.inWaves("shop", n, objects...)
		r.set([]fleet.Sync{s})
		return s
	}
	r.ready(revision(1, "false"))
	r.eventually("its pods run", func() bool { return r.ofConfig("web-1") == 2 })
	r.waits(revision(2, "true"), "web-1")
	r.stop()
	r.count.upset(func(q *http.Request) error {
		if strings.HasSuffix(q.URL.Path, "/deployments") {
			return errors.New("connection reset by a test")
		}
		return nil
	})
	r.start()
	r.set(r.current.Syncs)
	r.wait("shop", "nothing known of web", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Extras) == 1 && strings.HasSuffix(x.Extras[0].Message, "/web, of which nothing is known now")
	})
	r.usedAndThere("web-1")
	r.count.upset(nil)
	r.wait("shop", "two old pods", func(x fleet.SyncStatus) bool {
		return len(x.Extras) == 1 && strings.HasSuffix(x.Extras[0].Message, "/web has 2")
	})
	r.usedAndThere("web-1")
}

// TestDiffers: how many pods there are, whether an update is paused, and what is noted on an object make none use anything.
func TestDiffers(t *testing.T) {
	web, service, custom := fleet.ObjectID{Group: "apps", Kind: "Deployment"}, fleet.ObjectID{Kind: "Service"}, fleet.ObjectID{Group: "db.io", Kind: "Cluster"}
	change := func(pointer string, n int) *watch.Change {
		return &watch.Change{Field: apply.Field{Pointer: pointer}, Fields: n}
	}
	for _, tc := range []struct {
		id    fleet.ObjectID
		drift fleet.Drift
		c     *watch.Change
		want  bool
	}{
		{web, fleet.DriftInSync, nil, false},
		{web, fleet.DriftDrifted, nil, true},
		{web, fleet.DriftDrifted, change("", 1), true},
		{web, fleet.DriftDrifted, change("/spec/template/spec/containers/0/image", 1), true},
		{web, fleet.DriftHeld, change("/spec/replicas", 1), false},
		{web, fleet.DriftHeld, change("/spec/replicas", 2), true},
		{web, fleet.DriftDrifted, change("/spec/paused", 1), false},
		{web, fleet.DriftDrifted, change("/metadata/labels/a", 1), false},
		{service, fleet.DriftDrifted, change("/spec/selector/app", 1), true},
		{service, fleet.DriftIgnored, change("/spec/selector/app", 1), false},
		{web, fleet.DriftIgnored, change("/spec/template/spec/containers/0/image", 1), true},
		{custom, fleet.DriftDrifted, change("/spec/version", 1), true},
		{custom, fleet.DriftIgnored, change("/spec/template/x", 1), false},
	} {
		if got := differs(tc.id, tc.drift, tc.c); got != tc.want {
			t.Errorf("%s %s %+v: %t", tc.id, tc.drift, tc.c, got)
		}
	}
}
