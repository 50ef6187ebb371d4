package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// shopPods is a workload whose pods take their environment from a ConfigMap with a name of its own in each revision, as kustomize gives
// it. A revision is the ConfigMap and the workload with it, and drops the ConfigMap of before.
type shopPods struct {
	r        *rig
	kind     string
	strategy string // of the spec, a line
	replicas int
	policies []fleet.Policy
}

// shopKinds are workloads that stand still in the middle of an update, each with what stops them before it.
var shopKinds = map[string]struct {
	kind, strategy string
	stop           func(*rig)
	halted         int // pods that stay old; 0: one on each node
}{
	"a Deployment that somebody paused": {"Deployment", "", func(r *rig) { r.pause(true) }, 2},
	"a StatefulSet with a partition":    {"StatefulSet", "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}", nil, 1},
	"a StatefulSet OnDelete":            {"StatefulSet", "updateStrategy: {type: OnDelete}", nil, 2},
	"a DaemonSet OnDelete":              {"DaemonSet", "updateStrategy: {type: OnDelete}", nil, 0},
}

func (r *rig) pause(yes bool) {
	r.patch("apps/v1", "deployments", "web", "kubectl-rollout", fmt.Sprintf(`{"spec":{"paused":%t}}`, yes))
}

func (s *shopPods) revision(config string) fleet.Sync {
	sync := s.r.bundle("shop", s.policies, s.objects(config)...)
	s.r.set([]fleet.Sync{sync})
	return sync
}

func (s *shopPods) objects(config string) []string {
	replicas := fmt.Sprintf("replicas: %d", s.replicas)
	if s.kind == "DaemonSet" {
		replicas = ""
	}
	return []string{configMap(config, "k: v"), fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: web, namespace: $NS}
spec:
  %s
  %s
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "nginx:1", envFrom: [{configMapRef: {name: %s}}]}]}
`, s.kind, replicas, s.strategy, config)}
}

// waits until a sync is ready, and what it drops waits for old pods.
func (r *rig) waits(sync fleet.Sync, kept ...string) {
	r.t.Helper()
	r.wait("shop", "ready, with "+strings.Join(kept, ", ")+" kept", func(x fleet.SyncStatus) bool {
		return x.Generation == sync.Generation && x.Ready && x.Reason == plan.ReasonAwaitingUpdate && slices.Equal(names(x.Extras, plan.ReasonAwaitingUpdate), kept)
	})
	r.noneUsedIsGone()
	for _, name := range kept {
		if r.get("v1", "configmaps", name) == nil {
			r.t.Errorf("%s is gone", name)
		}
	}
}

// goes waits until ConfigMaps are deleted, none of them from under a pod.
func (s *shopPods) goes(names ...string) {
	s.r.t.Helper()
	s.r.eventually(strings.Join(names, ", ")+" deleted", func() bool {
		s.r.noneUsedIsGone()
		return !slices.ContainsFunc(names, func(name string) bool { return s.r.get("v1", "configmaps", name) != nil })
	})
}

// noneUsedIsGone: no pod that runs takes its environment from a ConfigMap that is not there.
func (r *rig) noneUsedIsGone() {
	r.t.Helper()
	list, err := r.res("v1", "pods", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, pod := range list.Items {
		config := usedBy(pod)
		if r.get("v1", "configmaps", config) != nil {
			continue
		}
		if now := r.get("v1", "pods", pod.GetName()); now != nil && now.GetUID() == pod.GetUID() && now.GetDeletionTimestamp() == nil {
			r.t.Fatalf("ConfigMap %s is deleted, and pod %s that runs uses it", config, pod.GetName())
		}
	}
}

func usedBy(pod unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	from, _, _ := unstructured.NestedSlice(containers[0].(map[string]any), "envFrom")
	name, _, _ := unstructured.NestedString(from[0].(map[string]any), "configMapRef", "name")
	return name
}

// TestWhatOldPodsUseStays: while a workload stands still in the middle of an update, its old pods use what the revision drops: it is not
// deleted from under them (pruneWhen: AfterReady, the default), though the sync is ready. So it is with what another revision drops meanwhile.
func TestWhatOldPodsUseStays(t *testing.T) {
	for name, tc := range shopKinds {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := &shopPods{r: r, kind: tc.kind, strategy: tc.strategy, replicas: 2}
			r.ready(s.revision("web-1"))
			if tc.stop != nil {
				tc.stop(r)
			}
			r.waits(s.revision("web-2"), "web-1")
			halted := cmp.Or(tc.halted, r.ofConfig("web-1"))
			said := fmt.Sprintf("%s.apps %s/web has %d", tc.kind, r.ns, halted)
			r.wait("shop", said, func(x fleet.SyncStatus) bool {
				return len(x.Extras) == 1 && strings.HasSuffix(x.Message, said) && strings.HasSuffix(x.Extras[0].Message, said)
			})
			r.waits(s.revision("web-3"), "web-1", "web-2")
			if tc.stop != nil {
				r.pause(false)
			} else {
				s.strategy = ""
				s.revision("web-3")
			}
			s.goes("web-1", "web-2")
			r.wait("shop", "through", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 && x.Reason == "" })
		})
	}
}

// TestOldPodsThatAreMadeAgain: one that is deleted below the partition of its StatefulSet is made by the old template again, and needs
// what that uses.
func TestOldPodsThatAreMadeAgain(t *testing.T) {
	r := newRig(t)
	s := &shopPods{r: r, kind: "StatefulSet", strategy: "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}", replicas: 2}
	r.ready(s.revision("web-1"))
	r.waits(s.revision("web-2"), "web-1")
	old := r.get("v1", "pods", "web-0").GetUID()
	r.delete("v1", "pods", "web-0")
	r.eventually("it is made again", func() bool {
		pod := r.get("v1", "pods", "web-0")
		return pod != nil && pod.GetUID() != old && usedBy(*pod) == "web-1"
	})
	r.noneUsedIsGone()
	s.strategy = ""
	s.revision("web-2")
	s.goes("web-1")
}

// ofConfig is how many pods use a ConfigMap.
func (r *rig) ofConfig(config string) (n int) {
	list, err := r.res("v1", "pods", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, pod := range list.Items {
		if usedBy(pod) == config {
			n++
		}
	}
	return n
}

// TestOldPodsThatAreDeletedByHand: a StatefulSet that is OnDelete is through when somebody has deleted its pods, whatever its
// currentRevision says.
func TestOldPodsThatAreDeletedByHand(t *testing.T) {
	r := newRig(t)
	s := &shopPods{r: r, kind: "StatefulSet", strategy: "updateStrategy: {type: OnDelete}", replicas: 2}
	r.ready(s.revision("web-1"))
	r.waits(s.revision("web-2"), "web-1")
	r.delete("v1", "pods", "web-0")
	r.delete("v1", "pods", "web-1")
	s.goes("web-1")
}

// TestOldPodsHoldNothingElse: without pods nothing is used; a policy that does not wait for health does not wait for pods; and a module
// that goes waits for none.
func TestOldPodsHoldNothingElse(t *testing.T) {
	stopped := func(t *testing.T) *shopPods {
		s := &shopPods{r: newRig(t), kind: "Deployment", replicas: 2}
		s.r.ready(s.revision("web-1"))
		s.r.pause(true)
		return s
	}
	gone := func(s *shopPods) {
		s.r.eventually("web-1 deleted", func() bool { return s.r.get("v1", "configmaps", "web-1") == nil })
	}
	t.Run("scaled to 0", func(t *testing.T) {
		s := stopped(t)
		s.replicas = 0
		s.revision("web-2")
		s.goes("web-1")
	})
	for _, when := range []string{fleet.PruneAfterApply, fleet.PruneFirst} {
		t.Run(when, func(t *testing.T) {
			s := stopped(t)
			s.r.waits(s.revision("web-2"), "web-1")
			s.policies = []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"web-1"}}, PruneWhen: when}}
			s.revision("web-2")
			gone(s)
		})
	}
	t.Run("paused, and not in an update", func(t *testing.T) {
		s := stopped(t)
		sync := s.r.bundle("shop", nil, append(s.objects("web-1"), configMap("other", "k: v"))...)
		s.r.set([]fleet.Sync{sync})
		s.r.ready(sync)
		s.revision("web-1")
		s.goes("other")
	})
	t.Run("deleted by hand", func(t *testing.T) {
		s := stopped(t)
		s.r.waits(s.revision("web-2"), "web-1")
		s.r.delete("v1", "configmaps", "web-1")
		s.r.wait("shop", "ready, and nothing waits", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 && x.Reason == "" })
	})
	t.Run("the module goes", func(t *testing.T) {
		s := stopped(t)
		s.r.waits(s.revision("web-2"), "web-1")
		s.r.set(nil, s.r.tombstone("shop", fleet.DeleteDelete))
		s.r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		gone(s)
	})
}

const rolloutKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rollouts.argoproj.io}
spec:
  group: argoproj.io
  scope: Namespaced
  names: {kind: Rollout, plural: rollouts}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestWhatACanaryLeavesIsUsed: the same with a Rollout of Argo Rollouts whose canary waits at a pause step: most of its pods are the stable
// ones. Its status is what its controller writes.
func TestWhatACanaryLeavesIsUsed(t *testing.T) {
	r := aloneRig(t)
	r.clusterScoped("customresourcedefinitions", rolloutKind)
	r.eventually("the kind is served", func() bool {
		_, err := r.res("argoproj.io/v1alpha1", "rollouts", r.ns).List(context.Background(), metav1.ListOptions{})
		return err == nil
	})
	revision := func(config string) fleet.Sync {
		s := r.bundle("shop", nil, configMap(config, "k: v"), strings.ReplaceAll(`
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web, namespace: $NS}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  strategy: {canary: {steps: [{setWeight: 20}, {pause: {}}]}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "nginx:1", envFrom: [{configMapRef: {name: CONFIG}}]}]}
`, "CONFIG", config))
		r.set([]fleet.Sync{s})
		r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
		return s
	}
	status := func(generation int, phase, hashes string, updated int) {
		r.patch("argoproj.io/v1alpha1", "rollouts", "web", "rollouts-controller",
			fmt.Sprintf(`{"status":{"observedGeneration":"%d","phase":%q,%s,"replicas":5,"updatedReplicas":%d,"availableReplicas":5}}`, generation, phase, hashes, updated), "status")
	}
	const before, between, after = `"currentPodHash":"a","stableRS":"a"`, `"currentPodHash":"b","stableRS":"a"`, `"currentPodHash":"b","stableRS":"b"`
	s := revision("web-1")
	status(1, "Healthy", before, 5)
	r.ready(s)
	s = revision("web-2")
	status(2, "Progressing", between, 1)
	r.wait("shop", "not ready", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && slices.Equal(names(x.Extras, plan.ReasonAwaitingReady), []string{"web-1"})
	})
	for updated, said := range map[int]string{1: "Rollout.argoproj.io " + r.ns + "/web has 4", 5: "Rollout.argoproj.io " + r.ns + "/web is not through with its update"} {
		status(2, "Paused", between, updated)
		r.wait("shop", said, func(x fleet.SyncStatus) bool {
			return x.Ready && x.Generation == s.Generation && x.Reason == plan.ReasonAwaitingUpdate && strings.Contains(x.Message, said)
		})
		if r.get("v1", "configmaps", "web-1") == nil {
			t.Fatal("deleted while pods of the stable ReplicaSet use it, or would again")
		}
	}
	status(2, "Healthy", after, 5)
	r.eventually("it goes when the canary is through", func() bool { return r.get("v1", "configmaps", "web-1") == nil })
}

// TestRuleThatTellsWhatAnOperatorHasSeen: the status of a custom resource has no observedGeneration, and its Ready=True is of before. A
// health rule that compares status and spec keeps what the revision drops until the operator has come to it.
func TestRuleThatTellsWhatAnOperatorHasSeen(t *testing.T) {
	r := newRig(t)
	r.define("databases", "Database", "v1")
	revision := func(config string) fleet.Sync {
		s := r.judge(r.bundle("shop", nil, configMap(config, "k: v"), "apiVersion: $NS.example.com/v1\nkind: Database\nmetadata: {name: db, namespace: $NS}\nspec: {config: "+config+"}\n"),
			fleet.HealthRule{Group: r.group(), Kind: "Database", Healthy: "object.status.config == object.spec.config"})
		r.set([]fleet.Sync{s})
		r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
		return s
	}
	operator := func(config string) {
		r.patch(r.group()+"/v1", "databases", "db", "operator", `{"status":{"config":"`+config+`","conditions":[{"type":"Ready","status":"True"}]}}`)
	}
	s := revision("db-1")
	operator("db-1")
	r.ready(s)
	s = revision("db-2")
	r.wait("shop", "waiting for the operator", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && !x.Ready && slices.Equal(names(x.Extras, plan.ReasonAwaitingReady), []string{"db-1"})
	})
	if r.get("v1", "configmaps", "db-1") == nil {
		t.Error("deleted before the operator has seen the change")
	}
	operator("db-2")
	r.eventually("it goes", func() bool { return r.get("v1", "configmaps", "db-1") == nil })
}
