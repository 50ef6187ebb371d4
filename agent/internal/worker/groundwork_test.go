package worker

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestWhatIsMadeFindsItsGround: quotas, limits and accounts are in place before rights, Secrets and policies are sent, and these before what else is
// made; what is only changed waits for nothing.
func TestWhatIsMadeFindsItsGround(t *testing.T) {
	for _, tc := range []struct{ jobs, want string }{
		{"+LimitRange +ServiceAccount +ConfigMap +Secret +NetworkPolicy +Pod +Deployment", "LimitRange ServiceAccount|ConfigMap Secret NetworkPolicy|Pod Deployment"},
		{"ServiceAccount ConfigMap Deployment", "ServiceAccount ConfigMap Deployment"},
		{"ServiceAccount +Secret Deployment Deployment", "ServiceAccount|Secret Deployment Deployment"},
		{"+ServiceAccount ConfigMap Deployment", "ServiceAccount ConfigMap Deployment"},
		{"+Pod", "Pod"},
		{"LimitRange +Namespace +Pod", "Namespace|LimitRange|Pod"},
	} {
		var jobs []*item
		for _, word := range strings.Fields(tc.jobs) {
			kind, made := strings.CutPrefix(word, "+")
			it := &item{action: plan.Action{Verb: plan.Apply}}
			it.entry.ID = fleet.ObjectID{Group: map[string]string{"NetworkPolicy": "networking.k8s.io", "Deployment": "apps"}[kind], Kind: kind, Name: "x"}
			if made {
				it.action.Verb = plan.Create
			}
			jobs = append(jobs, it)
		}
		inOrder(jobs)
		var got []string
		for len(jobs) > 0 {
			n := atOnce(jobs, plan.StageOf(jobs[0].entry.ID, 0))
			var kinds []string
			for _, it := range jobs[:n] {
				kinds = append(kinds, it.entry.ID.Kind)
			}
			got, jobs = append(got, strings.Join(kinds, " ")), jobs[n:]
		}
		if s := strings.Join(got, "|"); s != tc.want {
			t.Errorf("%s: %s, want %s", tc.jobs, s, tc.want)
		}
	}
}

// TestPodHasTheLimitsOfItsModule: an API server gives a Pod the limits of the LimitRanges that are there when it is made, and never later.
func TestPodHasTheLimitsOfItsModule(t *testing.T) {
	r := newRig(t)
	r.set([]fleet.Sync{r.bundle("shop", nil,
		"apiVersion: v1\nkind: LimitRange\nmetadata: {name: limits, namespace: $NS}\nspec: {limits: [{type: Container, default: {memory: 64Mi}}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: $NS}\nspec: {containers: [{name: web, image: registry.example.org/web}]}\n")})
	r.eventually("the Pod is made", func() bool { return r.get("v1", "pods", "web") != nil })
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.get("v1", "pods", "web").Object, &pod); err != nil {
		t.Fatal(err)
	}
	if got := pod.Spec.Containers[0].Resources.Limits.Memory().String(); got != "64Mi" {
		t.Errorf("the Pod has a limit of %s, want 64Mi", got)
	}
}
