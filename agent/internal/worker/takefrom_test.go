package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

func taking(from ...string) []fleet.Policy {
	return []fleet.Policy{{Adopt: fleet.AdoptAlways, TakeFrom: from}}
}

// tools are what each leaves on an object, and by what it has that.
var tools = map[string]struct {
	tool, manager, meta string
	server              bool // it applies server-side
	crd, owner          string
}{
	"Argo CD": {fleet.TakeArgoCD, "argocd-controller", `annotations: {argocd.argoproj.io/tracking-id: "$NS-web:/ConfigMap:$NS/a"}`, false,
		"applications.argoproj.io v1alpha1 Application", "metadata: {name: $NS-web, namespace: $NS}"},
	"Flux": {fleet.TakeFlux, "kustomize-controller", "labels: {kustomize.toolkit.fluxcd.io/name: web, kustomize.toolkit.fluxcd.io/namespace: $NS}", true,
		"kustomizations.kustomize.toolkit.fluxcd.io v1 Kustomization", "metadata: {name: web, namespace: $NS}"},
	"Flux with Helm": {fleet.TakeFlux, "helm-controller", "labels: {helm.toolkit.fluxcd.io/name: web, helm.toolkit.fluxcd.io/namespace: $NS}, annotations: {meta.helm.sh/release-name: web, meta.helm.sh/release-namespace: $NS}", false,
		"helmreleases.helm.toolkit.fluxcd.io v2 HelmRelease", "metadata: {name: web, namespace: $NS}"},
	"Helm 3": {fleet.TakeHelm, "helm", "annotations: {meta.helm.sh/release-name: web, meta.helm.sh/release-namespace: $NS}", false,
		"", "metadata: {name: sh.helm.release.v1.web.v3, namespace: $NS, labels: {owner: helm, name: web, status: deployed}}"},
	"Helm 4": {fleet.TakeHelm, "helm", "annotations: {meta.helm.sh/release-name: web, meta.helm.sh/release-namespace: $NS}", true,
		"", "metadata: {name: sh.helm.release.v1.web.v3, namespace: $NS, labels: {owner: helm, name: web, status: deployed}}"},
	"kubectl apply":               {fleet.TakeKubectl, "kubectl-client-side-apply", `annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}`, false, "", ""},
	"kubectl apply --server-side": {fleet.TakeKubectl, "kubectl", "", true, "", ""},
}

// What a tool has is taken from it only if it is listed and what the tool has it by is gone; then nothing of the tool is left on it, and
// the module can drop what the tool had set.
func TestTakeFromTools(t *testing.T) {
	for name, tool := range tools {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			theirs := configMap("a", "kept: other, dropped: '2'")
			if tool.meta != "" {
				theirs = strings.Replace(theirs, "name: a", "name: a, "+tool.meta, 1)
			}
			if tool.server {
				r.appliedBy(tool.manager, strings.ReplaceAll(theirs, "$NS", r.ns))
			} else {
				r.createAs(tool.manager, "v1", "configmaps", r.ns, r.object(theirs))
			}
			uid := r.uidOf("v1", "configmaps", "a")
			drop := r.holdsIt(tool.crd, tool.owner)
			others := []string{fleet.TakeHelm}
			if tool.tool == fleet.TakeHelm {
				others = []string{fleet.TakeFlux, fleet.TakeArgoCD}
			}
			full := configMap("a", "kept: '1', dropped: '2'")
			s := r.bundle("shop", taking(others...), full)
			r.conflicts(s)
			r.says(r.preview(s), "0 unchanged", "Refuse ConfigMap a Conflict")
			s = r.bundle("shop", taking(tool.tool), full)
			if tool.owner != "" {
				r.conflicts(s)
				x := r.wait("shop", "names the owner", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && len(x.Exceptions) == 1 })
				if m := x.Exceptions[0].Message; !strings.Contains(m, "still there") || !strings.Contains(m, "web") {
					t.Error(m)
				}
				r.says(r.preview(s), "0 unchanged", "Refuse ConfigMap a Conflict")
				drop()
			}
			r.set([]fleet.Sync{s})
			r.ready(s)
			s = r.bundle("shop", taking(tool.tool), configMap("a", "kept: '1'"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			live := r.get("v1", "configmaps", "a")
			if r.data("a", "kept") != "1" || r.data("a", "dropped") != "" || live.GetUID() != uid {
				t.Errorf("data %v", live.Object["data"])
			}
			for key := range live.GetAnnotations() {
				if strings.Contains(key, "helm") || strings.Contains(key, "argocd") || strings.Contains(key, "kubectl") {
					t.Errorf("the mark %s is left", key)
				}
			}
			if len(live.GetLabels()) != 1 {
				t.Errorf("labels %v", live.GetLabels())
			}
			r.goes()
			r.eventually("it goes with the module", func() bool { return r.get("v1", "configmaps", "a") == nil })
		})
	}
}

// holdsIt makes what a tool has objects by; the result takes it away.
func (r *rig) holdsIt(crd, owner string) func() {
	r.t.Helper()
	if owner == "" {
		return func() {}
	}
	apiVersion, resource, kind := "v1", "secrets", "Secret"
	if crd != "" {
		of := strings.Fields(crd)
		plural, group, _ := strings.Cut(of[0], ".")
		apiVersion, resource, kind = group+"/"+of[1], plural, of[2]
		r.clusterScoped("customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+of[0]+`}
spec:
  group: `+group+`
  scope: Namespaced
  names: {plural: `+plural+`, singular: `+strings.ToLower(kind)+`, kind: `+kind+`}
  versions: [{name: `+of[1]+`, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`)
		r.eventually("the kind is served", func() bool {
			_, err := r.res(apiVersion, resource, r.ns).List(context.Background(), metav1.ListOptions{})
			return err == nil
		})
	}
	obj := r.object("apiVersion: " + apiVersion + "\nkind: " + kind + "\n" + owner)
	r.create(apiVersion, resource, r.ns, obj)
	name := obj["metadata"].(map[string]any)["name"].(string)
	return func() { r.delete(apiVersion, resource, name) }
}

// A release that failed or is under way is there as one that is deployed is: the next upgrade writes its objects again, and an uninstall
// deletes them by their names. One that was uninstalled is gone, though Helm keeps what it was.
func TestTakeFromReleaseThatIsNotDeployed(t *testing.T) {
	r := newRig(t)
	r.createAs("helm", "v1", "configmaps", r.ns, r.object(strings.Replace(configMap("a", "k: other"), "name: a",
		"name: a, annotations: {meta.helm.sh/release-name: web, meta.helm.sh/release-namespace: $NS}", 1)))
	for _, revision := range []string{"9", "10"} {
		r.create("v1", "secrets", r.ns, r.object("apiVersion: v1\nkind: Secret\nmetadata: {name: sh.helm.release.v1.web.v"+revision+
			", namespace: $NS, labels: {owner: helm, name: web, version: '"+revision+"', status: superseded}}"))
	}
	newest := func(status string) {
		r.patch("v1", "secrets", "sh.helm.release.v1.web.v10", "helm", `{"metadata":{"labels":{"status":"`+status+`"}}}`)
	}
	for _, status := range []string{"failed", "pending-upgrade", "uninstalling"} {
		newest(status)
		s := r.bundle("shop", taking(fleet.TakeHelm), configMap("a", "k: ours"))
		r.conflicts(s)
		r.is("a", "other")
	}
	newest("uninstalled")
	s := r.bundle("shop", taking(fleet.TakeHelm), configMap("a", "k: ours"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.is("a", "ours")
}

// TestTakeFromReleaseOfTwoDrivers: a release whose HELM_DRIVER was changed is noted in Secrets and in ConfigMaps, each with its own last word, and
// lives while one of them says so. What the conflict says to do frees it of both, and leaves the object.
func TestTakeFromReleaseOfTwoDrivers(t *testing.T) {
	for name, status := range map[string][2]string{ // of what Secrets and ConfigMaps say
		"changed, and goes on":        {"deployed", "deployed"},
		"changed, and uninstalled":    {"deployed", "uninstalled"},
		"changed back, and goes on":   {"uninstalled", "deployed"},
		"of another driver from then": {"superseded", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.createAs("helm", "v1", "configmaps", r.ns, r.object(strings.Replace(configMap("a", "k: other"), "name: a",
				"name: a, annotations: {meta.helm.sh/release-name: web, meta.helm.sh/release-namespace: $NS}", 1)))
			uid := r.uidOf("v1", "configmaps", "a")
			notes := map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}
			for resource, kind := range notes {
				said := status[0]
				if kind == "ConfigMap" {
					said = status[1]
				}
				r.create("v1", resource, r.ns, r.object("apiVersion: v1\nkind: "+kind+"\nmetadata: {name: sh.helm.release.v1.web.v1, namespace: $NS, labels: {owner: helm, name: web, version: '1', status: "+said+"}}"))
			}
			s := r.bundle("shop", taking(fleet.TakeHelm), configMap("a", "k: ours"))
			r.conflicts(s)
			r.is("a", "other")
			x := r.wait("shop", "says how", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && len(x.Exceptions) == 1 })
			if m := x.Exceptions[0].Message; !strings.Contains(m, "secret,configmap -n "+r.ns+" -l owner=helm,name=web") {
				t.Error(m)
			}
			for resource := range notes { // as the command does
				if err := r.res("v1", resource, r.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "owner=helm,name=web"}); err != nil {
					t.Fatal(err)
				}
			}
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.is("a", "ours")
			if got := r.uidOf("v1", "configmaps", "a"); got != uid {
				t.Errorf("it was made anew: %s, was %s", got, uid)
			}
		})
	}
}
