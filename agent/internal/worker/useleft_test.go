package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// annotationIsBack has somebody change the annotation that the module sets on the rig's own Namespace, and waits until it is corrected: what came before has been
// seen then.
func (r *rig) annotationIsBack(want string) {
	r.t.Helper()
	_, err := r.client.Resource(gvr("v1", "namespaces")).Patch(context.Background(), r.ns, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"note":"theirs"}}}`), metav1.PatchOptions{FieldManager: "bob"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the annotation is corrected", func() bool { return r.namespace(r.ns).GetAnnotations()["note"] == want })
}

// TestPoliciesHoldForUsedNamespaces: what a policy leaves of a Namespace's labels holds also where somebody else made it, by the correction of another field
// and by revisions, for an agent of whichever name.
func TestPoliciesHoldForUsedNamespaces(t *testing.T) {
	config := labConfig(t)
	const team = "/metadata/labels/team"
	for name, tc := range map[string]struct {
		policies              []fleet.Policy
		drifted, revised, let string // the label after each step
	}{
		"on drift":           {once(fleet.OnceOnDrift, team), "b", "c", ""},
		"on update":          {once(fleet.OnceOnUpdate, team), "a", "a", "a"},
		"always":             {once(fleet.OnceAlways, team), "b", "b", ""},
		"by whom it is had":  {leftTo("ana"), "b", "b", "c"},
		"the whole on drift": {once(fleet.OnceOnDrift, fleet.OnceAll), "b", "c", ""},
	} {
		for agent, home := range map[string]string{"": "", ", another agent": "towline-two"} {
			t.Run(name+agent, func(t *testing.T) {
				t.Parallel()
				r := newRigOn(t, rest.CopyConfig(config))
				r.home = home
				r.restart()
				is := func(want string) {
					t.Helper()
					if got := r.namespace(r.ns).GetLabels()["team"]; got != want {
						t.Errorf("team is %q, want %q", got, want)
					}
				}
				seen := func() {
					t.Helper()
					if name != "the whole on drift" {
						r.annotationIsBack("ours")
					}
				}
				r.becomes(nil, namespace("$NS", "team: a"), configMap("a", "k: v"))
				r.becomes(tc.policies, namespace("$NS", "team: a"), configMap("a", "k: v"))
				r.label(r.ns, "ana", `{"team":"b"}`)
				seen()
				is(tc.drifted)
				r.restart()
				s := r.becomes(tc.policies, namespace("$NS", "team: a"), configMap("a", "k: w"))
				seen()
				is(tc.drifted)
				if x := r.ready(s); x.States[1].Drift == fleet.DriftDrifted {
					t.Errorf("drift is told of: %+v", x)
				}
				r.becomes(tc.policies, namespace("$NS", "team: c, more: d"), configMap("a", "k: w"))
				is(tc.revised)
				r.label(r.ns, "ana", `{"team":null}`)
				r.label(r.ns, "bob", `{"own":"x"}`)
				r.eventually("it is as the policy says", func() bool { return r.namespace(r.ns).GetLabels()["team"] == tc.let })
			})
		}
	}
}
