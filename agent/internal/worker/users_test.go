package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/tracker"
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
		"drift: Report":      {fleet.DriftReport, fleet.DriftDrifted, "null"},
		"drift: Ignore":      {fleet.DriftIgnore, fleet.DriftIgnored, "null"},
		"held":               {fleet.DriftCorrect, fleet.DriftHeld, `"incident"`},
		"held, and reported": {fleet.DriftReport, fleet.DriftDrifted, `"incident"`},
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
				r.eventually("its pods run", func() bool {
					n, _, _ := unstructured.NestedInt64(r.get("apps/v1", "deployments", "web").Object, "status", "availableReplicas")
					return n == 2 && r.ofConfig("web-2") == 0
				})
				return r.wait("shop", "not as the revision says", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && slices.ContainsFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == tc.kept })
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

// TestRevisionThatNeverRan: what a person or another tool has back is what the pods are made by. Whatever else the revision changed of the
// object, and whether it is left so, corrected without an end or not to be corrected, the module is not ready by the pods of before.
func TestRevisionThatNeverRan(t *testing.T) {
	back := func(r *rig) { r.undo("web-1") }
	var forbidden atomic.Bool
	for name, tc := range map[string]struct {
		drift  string
		change func(object string) string // what the revision changes beside the ConfigMap and the image
		back   func(*rig)
	}{
		"a label as well": {fleet.DriftReport, func(s string) string {
			return strings.Replace(s, "namespace: $NS}", `namespace: $NS, labels: {version: "1.5"}}`, 1)
		}, back},
		"one more variable": {fleet.DriftReport, func(s string) string {
			return strings.Replace(s, "envFrom:", `env: [{name: NEW, value: "1"}], envFrom:`, 1)
		}, back},
		"replicas as well":            {fleet.DriftReport, func(s string) string { return strings.Replace(s, "replicas: 2", "replicas: 3", 1) }, back},
		"a policy of the cluster":     {fleet.DriftCorrect, func(s string) string { return s }, (*rig).turnsBack},
		"another tool":                {fleet.DriftCorrect, func(s string) string { return s }, (*rig).keepUndoing},
		"the correction is forbidden": {fleet.DriftCorrect, func(s string) string { return s }, func(r *rig) { forbidden.Store(true); r.undo("web-1") }},
	} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			r.stop()
			r.answers(func(q *http.Request) *http.Response {
				if !forbidden.Load() || q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/deployments/web") {
					return nil
				}
				return answer(q, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"nobody writes for now","reason":"Forbidden","code":403}`)
			})
			r.start()
			t.Cleanup(func() { forbidden.Store(false) })
			policies := []fleet.Policy{{Drift: tc.drift}}
			s := r.bundle("shop", policies, webUsing("web-1", fine)...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			next := webUsing("web-2", neverReady)
			next[1] = tc.change(next[1])
			s = r.bundle("shop", policies, next...)
			r.set([]fleet.Sync{s})
			r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
			tc.back(r)
			r.wait("shop", "as it was before, and not ready", func(x fleet.SyncStatus) bool {
				i := slices.IndexFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == fleet.DriftDrifted || o.Drift == fleet.DriftConflict })
				told := strings.Contains(x.Message, "was not ready before as the revision has it") || x.Reason == apply.ReasonForbidden
				return x.Generation == s.Generation && i >= 0 && x.States[i].Health == fleet.HealthProgressing && told && !x.Ready
			})
			r.usedAndThere("web-1")
		})
	}
}

// TestHeldWorkloadThatWentElsewhere: what was never ready as the revision has it, is held, and was taken to something else than it had before does
// not count by what runs then, though a policy would leave it so without the hold, too.
func TestHeldWorkloadThatWentElsewhere(t *testing.T) {
	r := newRig(t)
	report := []fleet.Policy{{Drift: fleet.DriftReport}}
	s := r.bundle("shop", report, append(webUsing("web-1", fine), configMap("web-0", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", report, append(webUsing("web-2", neverReady), configMap("web-0", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
	s.Hold = true
	r.set([]fleet.Sync{s})
	r.undo("web-0")
	r.eventually("its pods run", func() bool { return r.ofConfig("web-0") == 2 && r.ofConfig("web-2") == 0 })
	status := r.wait("shop", "held, and not as the revision has it", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseHeld && slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool {
			return strings.Contains(e.Message, "was not ready before as the revision has it")
		})
	})
	if got := tracker.Fold(tracker.Input{Connected: true, Desired: &s, Observed: &status}); got.Fine() || got.DoesWell() {
		t.Errorf("the hub makes of it: %+v", got)
	}
}

// keepUndoing is another tool that wants what was there before, as soon as it sees anything else.
func (r *rig) keepUndoing() {
	ctx, stop := context.WithCancel(context.Background())
	r.t.Cleanup(stop)
	go func() {
		for ctx.Err() == nil {
			_, _ = r.res("apps/v1", "deployments", r.ns).Patch(ctx, "web", types.MergePatchType,
				[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"nginx:1","envFrom":[{"configMapRef":{"name":"web-1"}}]}]}}}}`), metav1.PatchOptions{FieldManager: "argocd-controller"})
		}
	}()
}

// turnsBack has a policy of the cluster turn the workload back whenever somebody else writes it, and somebody who does.
func (r *rig) turnsBack() {
	r.clusterScoped("mutatingadmissionpolicies", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: back-$NS}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments]}]}
  matchConditions: [{name: others, expression: "request.options.?fieldManager.orValue('') != 'towline'"}]
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: 'replace', path: '/spec/template/spec/containers/0/image', value: 'nginx:1'},
        JSONPatch{op: 'replace', path: '/spec/template/spec/containers/0/envFrom/0/configMapRef/name', value: 'web-1'}]
`)
	r.clusterScoped("mutatingadmissionpolicybindings", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: back-$NS}
spec: {policyName: back-$NS, matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`)
	ctx, stop := context.WithCancel(context.Background())
	r.t.Cleanup(stop)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			beat := fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i)
			_, _ = r.res("apps/v1", "deployments", r.ns).Patch(ctx, "web", types.MergePatchType, []byte(beat), metav1.PatchOptions{FieldManager: "heart"})
		}
	}()
}

// TestTwoWritersOfWhatRuns: another tool that changes a template each time to what no revision was is tolerated as ever: the revision's pods run.
func TestTwoWritersOfWhatRuns(t *testing.T) {
	r, force := aloneRig(t), []fleet.Policy{{Conflict: fleet.ConflictForce}}
	s := r.bundle("shop", force, webUsing("web-1", fine)...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go func() {
		for ctx.Err() == nil {
			_, _ = r.res("apps/v1", "deployments", r.ns).Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"labels":{"tier":"theirs"}}}}}`), metav1.PatchOptions{FieldManager: "tool"})
		}
	}()
	next := webUsing("web-2", fine)
	next[1] = strings.Replace(next[1], "metadata: {labels: {app: web}}", "metadata: {labels: {app: web, tier: ours}}", 1)
	s = r.bundle("shop", force, next...)
	r.set([]fleet.Sync{s})
	r.wait("shop", "ready, with two writers", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == s.Generation && slices.ContainsFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == fleet.DriftConflict })
	})
	r.usedAndThere("web-2")
}

// TestDriftOfWhatWasReady: what a policy leaves changed is no failure once the revision was ready; what is dropped waits while it may be used.
func TestDriftOfWhatWasReady(t *testing.T) {
	r := newRig(t)
	report := []fleet.Policy{{Drift: fleet.DriftReport}}
	s := r.bundle("shop", report, append(webUsing("web-2", fine), configMap("web-1", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("that it was ready is noted", func() bool { return r.m.inventory.Get(r.webID()).Before == nil })
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
					return x.Reason == plan.ReasonAwaitingUpdate && strings.Contains(x.Message, "/web of module two is not through with what that module makes of it") && slices.Contains(names(x.Extras, plan.ReasonAwaitingUpdate), "web-1")
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

// TestWhatHasNoPodsIsThroughAtOnce: a Service that never gets an address goes to another module as it is: nothing uses anything by it, and the
// module that let it go is removed.
func TestWhatHasNoPodsIsThroughAtOnce(t *testing.T) {
	r := newRig(t)
	service := "\napiVersion: v1\nkind: Service\nmetadata: {name: front, namespace: $NS}\nspec: {type: LoadBalancer, selector: {app: front}, ports: [{port: 80}]}\n"
	one := r.bundle("one", nil, service, configMap("rest", "k: v"))
	r.set([]fleet.Sync{one})
	r.wait("one", "applied", func(x fleet.SyncStatus) bool { return x.Generation == one.Generation && x.Phase == fleet.PhaseApplied })
	r.set([]fleet.Sync{r.bundle("two", nil, service)}, r.tombstone("one", fleet.DeleteDelete))
	r.wait("one", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
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
