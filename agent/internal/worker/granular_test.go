package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// listener is an object whose list a definition has as a whole at first, and by the names of its items from then on.
func (r *rig) listener(ports string) string {
	return "apiVersion: $NS.example.com/v1\nkind: Listener\nmetadata: {name: web, namespace: $NS}\nspec: {ports: [" + ports + "]}\n"
}

func (r *rig) defineListeners(list string) {
	r.t.Helper()
	r.defineAs("listeners", "Listener", "Namespaced", map[string]string{"v1": `{"type":"object","properties":{"ports":{"type":"array",` + list + `
		"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"port":{"type":"integer"}}}}}}`}, "v1")
}

// granular has the items of the list be somebody's each by itself.
func (r *rig) granular() {
	r.t.Helper()
	r.defineListeners(`"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],`)
	probe := strings.ReplaceAll(`{"apiVersion":"$NS.example.com/v1","kind":"Listener","metadata":{"name":"probe"},"spec":{"ports":[{"name":"a","port":1}]}}`, "$NS", r.ns)
	r.eventually("the definition holds", func() bool {
		_ = r.res(r.group()+"/v1", "listeners", r.ns).Delete(context.Background(), "probe", metav1.DeleteOptions{})
		u, err := r.res(r.group()+"/v1", "listeners", r.ns).Patch(context.Background(), "probe", types.ApplyPatchType, []byte(probe), metav1.PatchOptions{FieldManager: "ana"})
		return err == nil && strings.Contains(u.GetManagedFields()[0].FieldsV1.GetRawString(), "k:{")
	})
}

func (r *rig) ports() string {
	u := r.get(r.group()+"/v1", "listeners", "web")
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "ports")
	var out []string
	for _, item := range list {
		m, _ := item.(map[string]any)
		out = append(out, fmt.Sprint(m["name"], "=", m["port"]))
	}
	return strings.Join(out, " ")
}

// What somebody changes in an item of a list of ours is drift, also where that was noted as ours as a whole.
func TestDriftInAListThatADefinitionDivided(t *testing.T) {
	for _, drift := range []string{fleet.DriftCorrect, fleet.DriftReport} {
		t.Run(drift, func(t *testing.T) {
			r := newRig(t)
			r.defineListeners("")
			s := r.bundle("shop", []fleet.Policy{{Drift: drift}}, r.listener("{name: a, port: 1}, {name: b, port: 2}"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			r.granular()
			if _, err := r.res(r.group()+"/v1", "listeners", r.ns).Patch(context.Background(), "web", types.JSONPatchType,
				[]byte(`[{"op":"replace","path":"/spec/ports/1/port","value":3}]`), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
				t.Fatal(err)
			}
			if drift == fleet.DriftReport {
				status := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
				if len(status.Exceptions) != 1 || status.Exceptions[0].ChangedBy != "ana" || r.ports() != "a=1 b=3" {
					t.Errorf("ports %s; status %+v", r.ports(), status)
				}
				s = r.bundle("shop", []fleet.Policy{{Drift: drift}}, r.listener("{name: a, port: 4}, {name: b, port: 2}"))
				r.neverFails("a revision", s)
				if r.ports() != "a=4 b=2" {
					t.Errorf("ports %s after a revision", r.ports())
				}
				return
			}
			r.wait("shop", "corrected", func(x fleet.SyncStatus) bool {
				if x.Phase == fleet.PhaseFailed {
					t.Fatalf("failed: %+v", x)
				}
				return x.Corrections == 1
			})
			if r.ports() != "a=1 b=2" {
				t.Errorf("ports %s", r.ports())
			}
		})
	}
}

// What a revision drops of a list goes, also where the list was noted as ours as a whole.
func TestItemOfAListThatADefinitionDividedGoes(t *testing.T) {
	r := newRig(t)
	r.defineListeners("")
	s := r.bundle("shop", nil, r.listener("{name: a, port: 1}, {name: b, port: 2}"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.granular()
	s = r.bundle("shop", nil, r.listener("{name: a, port: 1}, {name: c, port: 2}"))
	r.neverFails("a revision that renames an item", s)
	if r.ports() != "a=1 c=2" {
		t.Errorf("ports %s", r.ports())
	}
	r.neverFails("a revision that drops one", r.bundle("shop", nil, r.listener("{name: a, port: 1}")))
	if r.ports() != "a=1" {
		t.Errorf("ports %s", r.ports())
	}
}

// What somebody else puts into such a list stays his.
func TestItemOfOthersInAListThatADefinitionDividedStays(t *testing.T) {
	r := newRig(t)
	r.defineListeners("")
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, r.listener("{name: a, port: 1}, {name: b, port: 2}"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.granular()
	if _, err := r.res(r.group()+"/v1", "listeners", r.ns).Patch(context.Background(), "web", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/ports/-","value":{"name":"hers","port":9}}]`), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.neverFails("a revision", r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, r.listener("{name: a, port: 1}, {name: c, port: 2}")))
	if got := r.ports(); !strings.Contains(got, "hers=9") || strings.Contains(got, "b=2") {
		t.Errorf("ports %s", got)
	}
}
