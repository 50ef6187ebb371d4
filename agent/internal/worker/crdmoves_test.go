package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// converting is the definition with a second version that a webhook converts to, which nobody runs.
func converting(definition string) string {
	return strings.Replace(definition, "  versions:\n", `  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {url: "https://127.0.0.1:1/convert"}
  versions:
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, 1)
}

// TestDefinitionThatGoesToAnotherModule: the definition of a kind goes to another module, which has it with another scope or with a conversion that
// nobody answers. What the first module has of the kind stays, while the other fails, is deleted, or is put right.
func TestDefinitionThatGoesToAnotherModule(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"another scope": func(s string) string { return strings.Replace(s, "scope: Namespaced", "scope: Cluster", 1) },
		"a conversion":  converting,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			t.Cleanup(func() {
				_ = r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "").Delete(context.Background(), "gadgets."+r.ns+".example.com", metav1.DeleteOptions{})
			})
			gadgets := r.res(r.ns+".example.com/v1", "gadgets", r.ns)
			uid := func() types.UID {
				u, err := gadgets.Get(context.Background(), "t", metav1.GetOptions{})
				if err != nil {
					return ""
				}
				return u.GetUID()
			}
			definition := strictCRD("color: {type: string}")
			gadget := "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: t, namespace: $NS}\nspec: {color: red}\n"
			one := r.bundle("one", nil, definition, gadget)
			r.set([]fleet.Sync{one})
			r.ready(one)
			was := uid()
			less := r.bundle("one", nil, gadget)
			two := r.bundle("two", recreate, change(definition), configMap("c", "k: v"))
			r.set([]fleet.Sync{less, two})
			r.eventually("the other one is at work", func() bool { return r.data("c", "k") == "v" })
			if name == "another scope" {
				r.wait("two", "failed", func(x fleet.SyncStatus) bool { return x.Generation == two.Generation && x.Phase == fleet.PhaseFailed })
			} else {
				r.ready(two)
			}
			r.wait("one", "with its object", func(x fleet.SyncStatus) bool { return x.Generation == less.Generation && x.Extra() == 0 })
			dead := r.tombstone("two", fleet.DeleteDelete)
			r.set([]fleet.Sync{less}, dead)
			r.wait("two", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if got := uid(); got != was {
				t.Errorf("the object is %q, was %q", got, was)
			}
			both := r.bundle("one", nil, definition, gadget)
			r.set([]fleet.Sync{both})
			r.ready(both)
			if got := uid(); got != was {
				t.Errorf("at the end the object is %q, was %q", got, was)
			}
		})
	}
}
