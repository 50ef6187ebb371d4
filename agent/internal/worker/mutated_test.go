package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// mutates has the cluster change every ConfigMap that is written: it puts an x after the value of k, so that no two writes in a
// row leave the same.
func (r *rig) mutates() {
	r.t.Helper()
	r.clusterScoped("mutatingadmissionpolicies", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: x-$NS}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]}
  matchConditions: [{name: k, expression: "has(object.data) && 'k' in object.data"}]
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/data/k', value: object.data.k + 'x'}]"}
`)
	r.clusterScoped("mutatingadmissionpolicybindings", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: x-$NS}
spec: {policyName: x-$NS, matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`)
	probe := &unstructured.Unstructured{Object: r.configMapObject("probe", nil, map[string]any{"k": "v"})}
	r.eventually("the policy changes values", func() bool {
		u, err := r.res("v1", "configmaps", r.ns).Create(context.Background(), probe, metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil {
			return false
		}
		k, _, _ := unstructured.NestedString(u.Object, "data", "k")
		return k == "vx"
	})
}

// A policy that changes our fields whenever somebody else writes is a second writer: the agent stops, and says who it is. The
// module is applied all the same, and its next revision.
func TestPolicyThatChangesOurFields(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.mutates()
	r.count.take()
	stop := r.beats("a")
	status := r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftConflict })
	stop()
	if counts, _ := r.count.take(); counts["PATCH"] > plan.FlapWriter+2 {
		t.Errorf("requests %v", counts)
	}
	e := status.Exceptions[0]
	if e.Reason != "TwoWriters" || e.ChangedBy != "heart" || !strings.Contains(e.Message, "an admission policy or webhook of the cluster, whenever heart writes") {
		t.Errorf("exception %+v", e)
	}
	if status.Phase != fleet.PhaseApplied || status.States[0].Sync != fleet.SyncOutOfSync || status.Corrections != 0 {
		t.Errorf("status %+v", status)
	}
	next := r.bundle("shop", nil, configMap("a", "k: w"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied })
	r.eventually("the revision is written", func() bool { return strings.HasPrefix(r.data("a", "k"), "w") })
}

// beats has a program write something of its own into an object, again and again, until it is stopped.
func (r *rig) beats(name string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i)
				_, _ = r.res("v1", "configmaps", r.ns).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "heart"})
			}
		}
	}()
	return func() { cancel(); <-done }
}

// The same policy changes what is adopted, once for each of our own writes, and nothing is written again for it.
func TestPolicyThatChangesWhatIsAdopted(t *testing.T) {
	r := aloneRig(t)
	r.createAs("kubectl-create", "v1", "configmaps", r.ns, r.configMapObject("a", nil, map[string]any{"k": "v", "l": "v"}))
	r.mutates()
	r.count.take()
	s := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, configMap("a", "k: v, l: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "kubectl-edit", `{"data":{"l":"w"}}`)
	status := r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 })
	if counts, paths := r.count.take(); counts["PATCH"] != 4 || status.States[0].Drift != fleet.DriftInSync {
		t.Errorf("requests %v, status %+v", paths, status)
	}
	next := r.bundle("shop", nil, configMap("a", "l: v"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if counts, paths := r.count.take(); counts["PATCH"] != 1 || r.data("a", "k") != "" {
		t.Errorf("requests %v, k %q", paths, r.data("a", "k"))
	}
}
