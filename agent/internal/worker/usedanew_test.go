package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// A Namespace that somebody deleted and made anew while the agent was away has nothing of the module's: what its maker wants otherwise
// stays, as in any Namespace that was there before, and is said.
func TestLabelsOfANamespaceThatWasMadeAnew(t *testing.T) {
	for name, before := range map[string]bool{"it was used": true, "the module had made it": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			name := r.ns + "-anew"
			theirs := func(team string) map[string]any {
				return map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "labels": map[string]any{enforce: team, "team": team}}}
			}
			namespaces := r.res("v1", "namespaces", "")
			t.Cleanup(func() { _ = namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}) })
			if before {
				r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
			}
			s := r.bundle("shop", nil, namespace(name, enforce+": baseline, team: ours"), configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.namespace(name).GetUID()

			r.stop()
			if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			r.eventually("gone", func() bool { return r.namespace(name) == nil })
			r.create("v1", "namespaces", "", theirs("privileged"))
			anew := r.namespace(name).GetUID()
			r.start()
			r.set([]fleet.Sync{s})
			r.wait("shop", "applied, with what is not", func(x fleet.SyncStatus) bool {
				return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1 && x.Exceptions[0].ChangedBy == "somebody"
			})
			live := r.namespace(name)
			if l := live.GetLabels(); anew == uid || live.GetUID() != anew || l[enforce] != "privileged" || l["team"] != "privileged" || live.GetAnnotations()["note"] != "ours" {
				t.Errorf("labels %v, annotations %v", l, live.GetAnnotations())
			}
		})
	}
}
