package worker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// appliedBy applies an object server-side, as another tool does.
func (r *rig) appliedBy(manager, text string) {
	r.t.Helper()
	o := r.object(text)
	meta, _ := o["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	kind, _ := o["kind"].(string)
	body, err := json.Marshal(o)
	if err != nil {
		r.t.Fatal(err)
	}
	force := true
	_, err = r.res("v1", strings.ToLower(kind)+"s", r.ns).Patch(r.t.Context(), name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: manager, Force: &force})
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestObjectThatAnotherToolTookOverStays: an object goes over from a module to a chart, a Kustomization or a controller that sets
// no controller, before the revision that drops it comes, or its module goes.
func TestObjectThatAnotherToolTookOverStays(t *testing.T) {
	for name, tc := range map[string]struct {
		take func(r *rig)
		by   string
	}{
		"a chart takes it": {func(r *rig) {
			r.patch("v1", "secrets", "s", "helm", `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},
				"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"default"}}}`)
		}, `Helm release "shop"`},
		"a Kustomization applies it": {func(r *rig) {
			r.appliedBy("kustomize-controller", strings.Replace(certificate("bmV3"), "name: s", "name: s, labels: {kustomize.toolkit.fluxcd.io/name: apps}", 1))
		}, `Flux's Kustomization "apps"`},
		"an Application tracks it": {func(r *rig) {
			r.patch("v1", "secrets", "s", "argocd-controller", `{"metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"shop:/Secret:x/s"}}}`)
		}, `Argo CD's application "shop:/Secret:x/s"`},
		"an Application has it by its label": {func(r *rig) {
			r.patch("v1", "secrets", "s", "argocd-controller", `{"metadata":{"labels":{"app.kubernetes.io/instance":"shop"}}}`)
		}, "Argo CD"},
		"a controller applies what is in it": {func(r *rig) {
			r.appliedBy("issuer", certificate("bmV3"))
		}, "issuer, which applies it"},
		"an operator sets an owner that does not control it": {func(r *rig) {
			r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "owner", "namespace": r.ns}})
			r.patch("v1", "secrets", "s", "vault", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`,
				r.get("v1", "configmaps", "owner").GetUID()))
		}, "its owner, ConfigMap owner"},
	} {
		for _, removed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, removed %t", name, removed), func(t *testing.T) {
				r := newRig(t)
				s := r.bundle("shop", nil, configMap("a", "k: v"), certificate("b2xk"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.holdCluster(true) // nothing is corrected before the next word comes
				tc.take(r)
				uid := r.get("v1", "secrets", "s").GetUID()
				if removed {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
					if !strings.Contains(x.Message, "/s (left to "+tc.by+")") {
						t.Errorf("status %+v", x)
					}
				} else {
					next := r.bundle("shop", nil, configMap("a", "k: v"))
					r.set([]fleet.Sync{next})
					r.wait("shop", "rid of it", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == next.Generation && len(x.Extras) == 0 })
				}
				got := r.get("v1", "secrets", "s")
				if got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil || got.GetLabels()[fleet.HubLabel] != "" {
					t.Fatalf("the secret is %v", got)
				}
				if apply.ProofOf(got.GetManagedFields()).Applied {
					t.Errorf("fields are held still: %v", got.GetManagedFields())
				}
				if said := r.eventOf("s"); !strings.Contains(said, "left to "+tc.by) {
					t.Errorf("said %q", said)
				}
			})
		}
	}
}

// TestObjectThatIsStillTheModulesGoes: what a module took from a tool is the module's, and so is what others apply a part of.
func TestObjectThatIsStillTheModulesGoes(t *testing.T) {
	always := []fleet.Policy{{Adopt: fleet.AdoptAlways}}
	for name, tc := range map[string]struct {
		object        string
		before, after func(r *rig)
	}{
		"it was taken from Flux": {certificate("b2xk"), func(r *rig) {
			r.appliedBy("kustomize-controller", strings.Replace(certificate("bmV3"), "name: s", "name: s, labels: {kustomize.toolkit.fluxcd.io/name: apps}", 1))
		}, nil},
		"it was taken from a release": {certificate("b2xk"), func(r *rig) {
			r.createAs("helm", "v1", "secrets", r.ns, r.object(strings.Replace(certificate("bmV3"), "name: s", "name: s, annotations: {meta.helm.sh/release-name: shop}", 1)))
		}, nil},
		"it was taken from an Application": {certificate("b2xk"), func(r *rig) {
			r.createAs("argocd-controller", "v1", "secrets", r.ns, r.object(strings.Replace(certificate("b2xk"), "name: s", "name: s, annotations: {argocd.argoproj.io/tracking-id: shop}", 1)))
		}, nil},
		"the module lists the mark": {strings.Replace(certificate("b2xk"), "name: s", "name: s, annotations: {argocd.argoproj.io/tracking-id: mine}", 1), nil, nil},
		"somebody applies a part": {certificate("b2xk"), nil, func(r *rig) {
			r.appliedBy("labeller", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS, labels: {team: a}}\ntype: Opaque\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if tc.before != nil {
				tc.before(r)
			}
			s := r.bundle("shop", always, configMap("a", "k: v"), tc.object)
			r.set([]fleet.Sync{s})
			r.ready(s)
			if tc.after != nil {
				tc.after(r)
			}
			r.stop()
			r.start() // what was there before is noted
			next := r.bundle("shop", always, configMap("a", "k: v"))
			r.set([]fleet.Sync{next})
			r.wait("shop", "rid of it", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == next.Generation && len(x.Extras) == 0 })
			r.eventually("the secret is gone", func() bool { return r.get("v1", "secrets", "s") == nil })
		})
	}
}

// TestObjectThatWentBackToAToolStays: what a module took from a Kustomization, a release or an Application goes back to that, or over
// to another one, and stays with it.
func TestObjectThatWentBackToAToolStays(t *testing.T) {
	always := []fleet.Policy{{Adopt: fleet.AdoptAlways}}
	kustomized := func(by string) func(*rig) {
		return func(r *rig) {
			r.appliedBy("kustomize-controller", strings.Replace(certificate("b2xk"), "name: s", "name: s, labels: {kustomize.toolkit.fluxcd.io/name: "+by+"}", 1))
		}
	}
	marked := func(manager, annotations string) func(*rig) {
		return func(r *rig) {
			if r.get("v1", "secrets", "s") == nil {
				r.createAs(manager, "v1", "secrets", r.ns, r.object(certificate("b2xk")))
			}
			r.patch("v1", "secrets", "s", manager, `{"metadata":{"annotations":{`+annotations+`}}}`)
		}
	}
	release := marked("helm", `"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"default"`)
	application := marked("argocd-controller", `"argocd.argoproj.io/tracking-id":"shop:/Secret:x/s"`)
	for name, tc := range map[string]struct{ before, after func(*rig) }{
		"another Kustomization": {kustomized("apps"), kustomized("vault")},
		"the Kustomization":     {kustomized("apps"), kustomized("apps")},
		"the release":           {release, release},
		"the Application":       {application, application},
	} {
		for _, removed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, removed %t", name, removed), func(t *testing.T) {
				r := newRig(t)
				tc.before(r)
				s := r.bundle("shop", always, configMap("a", "k: v"), certificate("b2xk"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				tc.after(r)
				if removed {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
				} else {
					next := r.bundle("shop", always, configMap("a", "k: v"))
					r.set([]fleet.Sync{next})
					r.wait("shop", "rid of it", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == next.Generation && len(x.Extras) == 0 })
				}
				if got := r.get("v1", "secrets", "s"); got == nil || got.GetDeletionTimestamp() != nil || got.GetLabels()[fleet.HubLabel] != "" {
					t.Errorf("the secret is %v", got)
				}
			})
		}
	}
}

// TestObjectOfArgoCDIsNotTaken: Argo CD knows its own by a label that charts carry, too. What it has is not adopted for being equal,
// for it would go with the module.
func TestObjectOfArgoCDIsNotTaken(t *testing.T) {
	r := newRig(t)
	r.createAs("argocd-controller", "v1", "configmaps", r.ns, r.configMapObject("a", map[string]any{"labels": map[string]any{"app.kubernetes.io/instance": "shop"}}, map[string]any{"k": "v"}))
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonConflict && strings.Contains(x.Message, "Argo CD")
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") == nil {
		t.Error("deleted")
	}
}

// TestObjectThatAToolAppliesIsNotTaken: a tool without marks, such as Pulumi or an add-on of the cloud, applies what a module comes to
// list, equal. It is not adopted for that; what a person applied is, and what is applied in part.
func TestObjectThatAToolAppliesIsNotTaken(t *testing.T) {
	for manager, tc := range map[string]struct {
		text  string
		taken bool
	}{
		"pulumi-kubernetes-1234": {certificate("b2xk"), false},
		"kubectl":                {certificate("b2xk"), true},
		"injector":               {"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\ndata: {crt: b2xk}\n", true},
	} {
		t.Run(manager, func(t *testing.T) {
			r := newRig(t)
			if manager == "injector" {
				r.create("v1", "secrets", r.ns, r.object(certificate("b2xk")))
			}
			r.appliedBy(manager, tc.text)
			s := r.bundle("shop", nil, certificate("b2xk"))
			r.set([]fleet.Sync{s})
			if tc.taken {
				r.ready(s)
				return
			}
			r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonConflict && strings.Contains(x.Message, "is applied by "+manager)
			})
			always := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, certificate("b2xk"))
			r.set([]fleet.Sync{always})
			r.ready(always)
		})
	}
}

// certificate is a Secret such as one that an issuer fills.
func certificate(data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\ntype: Opaque\ndata: {crt: %[1]s, key: %[1]s}\n", data)
}

// applications is a kind whose status is written as any other field, as that of Argo CD's Applications.
const applications = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: applications.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Namespaced
  names: {kind: Application, plural: applications}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestApplicationThatArgoCDWorksOnIsTheModules: Argo CD writes what it makes of an Application into the object, and does not keep it
// for that. The module adopts it if it is equal, and takes it away.
func TestApplicationThatArgoCDWorksOnIsTheModules(t *testing.T) {
	r := newRig(t)
	r.clusterScoped("customresourcedefinitions", applications)
	r.eventually("the kind is served", func() bool { return r.lists("v1", "applications") })
	gv, shop := r.group()+"/v1", "apiVersion: $NS.example.com/v1\nkind: Application\nmetadata: {name: shop, namespace: $NS}\nspec: {project: default}\n"
	r.create(gv, "applications", r.ns, r.object(shop))
	report := `{"operation":{"sync":{}},"status":{"health":{"status":"Healthy"}}}`
	r.patch(gv, "applications", "shop", "argocd-application-controller", report)
	s := r.bundle("apps", nil, configMap("a", "k: v"), shop)
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.patch(gv, "applications", "shop", "argocd-application-controller", strings.ReplaceAll(report, "Healthy", "Degraded"))
	next := r.bundle("apps", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("apps", "rid of it", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == next.Generation && len(x.Extras) == 0 })
	r.eventually("the Application is gone", func() bool { return r.get(gv, "applications", "shop") == nil })
}
