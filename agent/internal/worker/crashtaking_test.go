package worker

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// The same of a module that takes what others made, uses a Namespace, has a Secret as text, and leaves replicas to an autoscaler: that
// takes more than one write for an object.
func TestKilledAnywhereTaking(t *testing.T) {
	if os.Getenv("TOWLINE_SOAK") == "" {
		t.Skip("a minute and more; make soak runs it")
	}
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		r.t.Cleanup(func() {
			_ = r.res("v1", "namespaces", "").Delete(context.Background(), r.ns+"-used", metav1.DeleteOptions{})
		})
		r.ofOthers()
		live(r.takingLives(), r.taken, func(life) {})
	})
}

// ofOthers makes what is there before the module.
func (r *rig) ofOthers() {
	r.t.Helper()
	r.appliedBy("kustomize-controller", strings.Replace(configMap("flux", "a: '1', b: '2'"), "name: flux", "name: flux, labels: {kustomize.toolkit.fluxcd.io/name: apps}", 1))
	r.appliedBy("labeller", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: flux, namespace: $NS, labels: {team: a}}\n")
	r.createAs("kubectl-client-side-apply", "v1", "configmaps", r.ns, r.configMapObject("kubectl",
		map[string]any{"annotations": map[string]any{fleet.LastApplied: "{}"}}, map[string]any{"a": "1", "b": "2", "hers": "3"}))
	r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": r.ns + "-used", "labels": map[string]any{"theirs": "x"}}})
	r.createAs("kubectl-create", "apps/v1", "deployments", r.ns, r.object(deployment("web", 2)))
	r.autoscaler("web")
	r.scale("web", 5, "kube-controller-manager")
}

func (r *rig) takingLives() []life {
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"flux", "web"}}, Adopt: fleet.AdoptAlways, TakeFrom: []string{fleet.TakeFlux}}}
	used := func(labels string) string {
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-used, labels: {" + labels + "}}\n"
	}
	secret := func(data string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: text, namespace: $NS}\nstringData: {" + data + "}\n"
	}
	web := deployment("web", 1)
	first := r.bundle("shop", policies, configMap("flux", "a: '1', b: '2'"), configMap("kubectl", "a: '1', b: '2'"),
		secret("a: '1', b: '2'"), used("la: x, lb: x"), web)
	second := r.bundle("shop", policies, configMap("flux", "a: '2', b: '2'"), configMap("kubectl", "a: '1', b: '2'"),
		secret("a: '1'"), used("la: x"), strings.ReplaceAll(web, "nginx:1", "nginx:2"))
	third := r.bundle("shop", policies, configMap("flux", "a: '2'"), configMap("kubectl", "a: '3'"))
	gone := r.tombstone("shop", fleet.DeleteDelete)
	const marks = " towline.dev/hub towline.dev/owner"
	return []life{
		{"a first revision", func() { r.set([]fleet.Sync{first}) }, map[string]string{"flux": "a=1 b=2 team" + marks, "kubectl": "a=1 b=2 hers=3" + marks,
			"text": "a=1 b=2" + marks, "used": "la lb theirs", "web": "5 of nginx:1 app" + marks}, "shop", isReady(first)},
		{"a second one", func() { r.set([]fleet.Sync{second}) }, map[string]string{"flux": "a=2 b=2 team" + marks, "kubectl": "a=1 b=2 hers=3" + marks,
			"text": "a=1" + marks, "used": "la theirs", "web": "5 of nginx:2 app" + marks}, "shop", isReady(second)},
		{"one with less", func() { r.set([]fleet.Sync{third}) },
			map[string]string{"flux": "a=2 team" + marks, "kubectl": "a=3 hers=3" + marks, "used": "theirs"}, "shop", isReady(third)},
		{"the end of the module", func() { r.set(nil, gone) }, map[string]string{"used": "theirs"}, "shop", isRemoved},
	}
}

// taken is what there is of those objects: data, replicas and image, labels and annotations.
func (r *rig) taken() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for name, at := range map[string][4]string{
		"flux":    {"v1", "configmaps", r.ns, "flux"},
		"kubectl": {"v1", "configmaps", r.ns, "kubectl"},
		"text":    {"v1", "secrets", r.ns, "text"},
		"web":     {"apps/v1", "deployments", r.ns, "web"},
		"used":    {"v1", "namespaces", "", r.ns + "-used"},
	} {
		u, err := r.res(at[0], at[1], at[2]).Get(context.Background(), at[3], metav1.GetOptions{})
		if err == nil {
			out[name] = strings.Join(said(u), " ")
		}
	}
	return out
}

func said(u *unstructured.Unstructured) (out []string) {
	data, _, _ := unstructured.NestedStringMap(u.Object, "data")
	for k, v := range data {
		if plain, err := base64.StdEncoding.DecodeString(v); err == nil && u.GetKind() == "Secret" {
			v = string(plain)
		}
		out = append(out, k+"="+v)
	}
	if containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers"); len(containers) > 0 {
		replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		out = append(out, fmt.Sprintf("%d of %v", replicas, containers[0].(map[string]any)["image"]))
	}
	for k := range u.GetLabels() {
		if k != "kubernetes.io/metadata.name" {
			out = append(out, k)
		}
	}
	for k := range u.GetAnnotations() {
		if !strings.HasPrefix(k, "deployment.kubernetes.io/") {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
