package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// What others are about to bring is waited for before it is a verdict, and what it is that is waited for is said.
func TestPassing(t *testing.T) {
	w := &worker{m: &Manager{o: Options{Reachable: func() bool { return true }}}}
	now := time.Now()
	for _, tc := range []struct {
		reason    string
		transient bool
		after     time.Duration
		tries     int
		want      bool
	}{
		{apply.ReasonNoKind, true, time.Minute, 9, true}, {apply.ReasonNoKind, true, awaited, 9, false},
		{apply.ReasonNoNamespace, true, time.Minute, 9, true}, {apply.ReasonTerminating, true, time.Minute, 9, true},
		{apply.ReasonWebhook, true, time.Minute, 9, true}, {apply.ReasonWebhook, true, awaited, 9, false},
		{apply.ReasonUnavailable, true, time.Second, 9, true}, {apply.ReasonUnavailable, true, hiccup, 9, false},
		{apply.ReasonInventory, true, time.Second, 9, true}, {apply.ReasonInventory, true, hiccup, 9, false},
		{apply.ReasonConflict, true, 0, failedTries - 1, true}, {apply.ReasonConflict, true, 0, failedTries, false},
		{apply.ReasonInvalid, false, 0, 1, false},
	} {
		it := &item{entry: fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "a"}}, tries: tc.tries, fail: &apply.Failure{Reason: tc.reason, Transient: tc.transient, Since: now.Add(-tc.after)}}
		if got := w.passing(it, now); got != tc.want {
			t.Errorf("%+v: %t", tc, got)
		}
	}
}

// The kind of an object comes a little later than the object, as that of a constraint does whose template Gatekeeper has just
// been given, and a webhook is not up yet. The module does not fail for that.
func TestWhatIsAboutToComeFailsNoModule(t *testing.T) {
	r := newRig(t)
	gizmo := "apiVersion: $NS.example.com/v1\nkind: Gizmo\nmetadata: {name: g, namespace: $NS}\n"
	r.clusterScoped("mutatingwebhookconfigurations", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: $NS}
webhooks:
- name: a.example.com
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
`)
	r.eventually("the webhook is asked", func() bool {
		return strings.Contains(r.createDry("probe"), "failed calling webhook")
	})
	s := r.bundle("shop", nil, gizmo, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	asks := map[string]int{} // kinds are not asked for at each try
	r.eventually("several tries", func() bool {
		_, paths := r.count.take()
		for _, p := range paths {
			asks[p]++
		}
		return asks["GET /apis/"+r.group()+"/v1"] > 1 && asks["PATCH /api/v1/namespaces/"+r.ns+"/configmaps/a"] > failedTries
	})
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplying && len(x.Exceptions) == 2 && (strings.Contains(x.Message, "failed calling webhook") || strings.Contains(x.Message, "no such kind"))
	})
	r.define("gizmos", "Gizmo", "v1")
	r.removeWebhook()
	r.eventually("the webhook is not asked", func() bool { return r.createDry("probe") == "<nil>" })
	r.m.retry(s.Module, fleet.ObjectID{Group: r.group(), Kind: "Gizmo", Namespace: r.ns, Name: "g"})
	r.m.retry(s.Module, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	if strings.Contains(r.heard.String(), "Phase:Failed") {
		t.Error("the module failed")
	}
}

// createDry is what the API server says of a new ConfigMap, which it does not store.
func (r *rig) createDry(name string) string {
	u := &unstructured.Unstructured{Object: r.configMapObject(name, nil, nil)}
	_, err := r.res("v1", "configmaps", r.ns).Create(context.Background(), u, metav1.CreateOptions{DryRun: []string{"All"}})
	return fmt.Sprint(err)
}

func (r *rig) removeWebhook() {
	r.t.Helper()
	err := r.res("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "").Delete(context.Background(), r.ns, metav1.DeleteOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// The same where the module has objects of the kind already, and the agent starts anew before the kind is back.
func TestKindThatIsAwayAtTheStart(t *testing.T) {
	r := newRig(t)
	r.define("gizmos", "Gizmo", "v1")
	gizmo := func(size string) fleet.Sync {
		return r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Gizmo\nmetadata: {name: g, namespace: $NS}\nspec: {size: "+size+"}\n")
	}
	s := gizmo("1")
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.undefine("gizmos")
	r.eventually("the kind is gone", func() bool { return !r.lists("v1", "gizmos") })
	r.start()
	next := gizmo("2")
	r.set([]fleet.Sync{next})
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "NoSuchKind" && strings.Contains(x.Message, "no such kind")
	})
	r.define("gizmos", "Gizmo", "v1")
	r.m.retry(s.Module, fleet.ObjectID{Group: r.group(), Kind: "Gizmo", Namespace: r.ns, Name: "g"})
	r.ready(next)
	if strings.Contains(r.heard.String(), "Phase:Failed") {
		t.Error("the module failed")
	}
}
