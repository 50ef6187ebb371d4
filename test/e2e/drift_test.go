package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/lab"
)

// medianLimit is how long the median correction may take: what the watch sees is corrected at once, and waits for no look that comes by
// itself. How fast that is, bench/drift measures against a reference; here others have the machine, too.
const medianLimit = time.Second

// touch is what somebody does to an object by hand.
type touch struct {
	kind, name string
	patch      any // a merge patch; nil: delete
	innocent   bool
}

// touches are done one after the other in each cluster.
func touches() []touch {
	var out []touch
	add := func(kind, pattern string, from, to int, patch any) {
		for i := from; i <= to; i++ {
			out = append(out, touch{kind: kind, name: fmt.Sprintf(pattern, i), patch: patch})
		}
	}
	dropLabel := map[string]any{"metadata": map[string]any{"labels": map[string]any{"towline.dev/hub": nil}}}
	otherLabel := map[string]any{"metadata": map[string]any{"labels": map[string]any{"towline.dev/hub": "someone-else"}}}
	dropOwner := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"towline.dev/owner": nil}}}
	data := map[string]any{"data": map[string]any{"text": "edited by hand"}}
	spec := func(k string, v any) any { return map[string]any{"spec": map[string]any{k: v}} }

	add("ConfigMap", "settings-%d", 1, 8, nil)
	add("Secret", "secret-%d", 1, 3, nil)
	add("Service", "service-%d", 8, 9, nil)
	add("Role", "role-%d", 1, 2, nil)
	add("RoleBinding", "binding-%d", 1, 2, nil)
	add("ClusterRole", "fleet-role-%d", 1, 1, nil)
	add("Deployment", "app-%d", 1, 1, nil)
	add("NetworkPolicy", "policy-%d", 1, 1, nil)
	add("Widget", "widget-%d", 1, 2, nil)
	add("Gadget", "gadget-%d", 1, 1, nil)
	add("StorageClass", "fleet-class-%d", 2, 2, nil)

	add("ConfigMap", "settings-%d", 9, 16, data)
	add("Secret", "secret-%d", 4, 5, map[string]any{"data": map[string]any{"key": "b3RoZXI="}})
	add("Deployment", "app-%d", 2, 4, spec("replicas", 5))
	add("Widget", "widget-%d", 3, 4, spec("color", "black"))
	add("Gadget", "gadget-%d", 2, 2, spec("size", nil))
	add("NetworkPolicy", "policy-%d", 2, 2, spec("policyTypes", []string{"Ingress", "Egress"}))
	add("Role", "role-%d", 3, 3, map[string]any{"rules": []any{map[string]any{"apiGroups": []string{""}, "resources": []string{"secrets"}, "verbs": []string{"get"}}}})
	add("CronJob", "cron-%d", 1, 1, spec("schedule", "* * * * *"))
	add("ConfigMap", "settings-%d", 17, 18, map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "other"}}})

	add("ConfigMap", "settings-%d", 19, 24, dropLabel)
	add("Secret", "secret-%d", 6, 7, dropLabel)
	add("Deployment", "app-%d", 5, 5, dropLabel)
	add("Widget", "widget-%d", 5, 5, dropLabel)
	add("Namespace", "fleet-%d", 2, 2, dropLabel)
	add("ServiceAccount", "account-%d", 1, 2, otherLabel)
	add("ConfigMap", "settings-%d", 25, 26, dropOwner)

	// What nobody but the other one owns is left alone.
	for i := 27; i <= 30; i++ {
		out = append(out, touch{"ConfigMap", fmt.Sprintf("settings-%d", i), map[string]any{"data": map[string]any{"theirs": "more"},
			"metadata": map[string]any{"annotations": map[string]any{"example.com/note": "seen"}}}, true})
	}
	return out
}

func testDrift(t *testing.T) {
	installFleet(t)
	quiet(t)
	wanted := map[string]*unstructured.Unstructured{}
	for _, o := range objects(t, fleetNamespace, fleetFiles()) {
		wanted[o.GetKind()+" "+o.GetName()] = o
	}
	var took []time.Duration
	from := mark(t)
	for _, c := range system.Clusters {
		for _, x := range touches() {
			x.do(t, c, wanted[x.kind+" "+x.name])
		}
		eventually(t, "all is as wanted again in "+c.Name, func() error {
			for _, x := range touches() {
				o := wanted[x.kind+" "+x.name]
				got, err := live(t, c, o)
				if err == nil {
					err = lab.AsWanted(o, got)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		took = append(took, corrections(t, c, from, wanted)...)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("%d corrections: median %s, 90%% %s, slowest %s", len(took), median, took[len(took)*9/10], took[len(took)-1])
	if median >= medianLimit {
		t.Errorf("the median correction took %s, want less than %s", median, medianLimit)
	}
	expectFleet(t)
	again := mark(t)
	quiet(t)
	again.noWrites(t)
}

func (x touch) do(t *testing.T, c *lab.Cluster, o *unstructured.Unstructured) {
	t.Helper()
	if o == nil {
		t.Fatalf("the module has no %s %s", x.kind, x.name)
	}
	resource, err := c.Resource(o.GetAPIVersion(), o.GetKind(), o.GetNamespace())
	if err != nil {
		t.Fatal(err)
	}
	if x.patch == nil {
		err = resource.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{})
	} else {
		patch, jsonErr := json.Marshal(x.patch)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		_, err = resource.Patch(t.Context(), o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-edit"})
	}
	if err != nil {
		t.Fatalf("cluster %s: %s: %v", c.Name, lab.Label(o), err)
	}
}

// corrections pairs what was done by hand with the agent's answers in the audit log: each touch has one write, and
// nothing else has any.
func corrections(t *testing.T, c *lab.Cluster, from marks, wanted map[string]*unstructured.Unstructured) []time.Duration {
	t.Helper()
	touched := map[string]time.Time{}
	innocent := map[string]bool{}
	for _, r := range from.requests(t, c, func(r lab.Request) bool { return r.ByLab() && r.IsWrite() }) {
		touched[r.Object()] = r.Answered
	}
	for _, x := range touches() {
		if x.innocent {
			innocent["configmaps "+fleetNamespace+"/"+x.name] = true
		}
	}
	writes := map[string]int{}
	var took []time.Duration
	for _, r := range from.requests(t, c, lab.Request.Applies) {
		at, ok := touched[r.Object()]
		switch {
		case !ok || innocent[r.Object()]:
			t.Errorf("cluster %s: a write that nothing called for: %s", c.Name, r)
		case r.Code == http.StatusConflict:
			// A watch by label cannot tell an object that lost it from one that is gone. The agent asks to create it,
			// which the server refuses if it is there.
		case r.Code >= 400:
			t.Errorf("cluster %s: a failed correction: %s", c.Name, r)
		case writes[r.Object()] > 0:
			t.Errorf("cluster %s: one more write than the correction: %s", c.Name, r)
		default:
			writes[r.Object()]++
			took = append(took, r.Answered.Sub(at))
		}
	}
	if want := len(touched) - len(innocent); len(took) != want {
		t.Errorf("cluster %s: %d corrections for %d changes", c.Name, len(took), want)
	}
	return took
}
