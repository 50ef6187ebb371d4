package plan

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What tools have is taken only from those that are listed, and each says by what it still may have it.
func TestTakeFrom(t *testing.T) {
	id := cm("a")
	helm := map[string]string{"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"}
	both := map[string]string{"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"}
	release := ToolOwner{Kind: ToolRelease, Namespace: "n", Name: "r"}
	fluxed := ToolOwner{Group: "helm.toolkit.fluxcd.io", Version: "v2", Kind: "HelmRelease", Namespace: "f", Name: "h"}
	kustomized := ToolOwner{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization", Namespace: "f", Name: "apps"}
	app := func(namespace string) ToolOwner {
		return ToolOwner{Group: "argoproj.io", Version: "v1alpha1", Kind: "Application", Namespace: namespace, Name: "shop"}
	}
	for _, tc := range []struct {
		name   string
		object Existing
		from   string
		owners []ToolOwner // of one that is taken
		says   string      // of one that is not
	}{
		{"nobody's", Existing{Creator: "ana"}, "Helm", nil, ""},
		{"edited by hand", Existing{Creator: "kubectl-create"}, "Helm", nil, ""},
		{"Helm's", Existing{Annotations: helm, Holders: []string{"helm"}}, "Helm", []ToolOwner{release}, ""},
		{"Helm's, of Flux", Existing{Annotations: helm}, "Flux", nil, `Helm release "r"`},
		{"by its field manager alone", Existing{Holders: []string{"helm"}}, "Helm", nil, ""},
		{"by its field manager alone, of another", Existing{Holders: []string{"helm"}}, "ArgoCD", nil, "field manager helm"},
		{"Flux's with Helm", Existing{Annotations: both, Labels: map[string]string{"helm.toolkit.fluxcd.io/name": "h", "helm.toolkit.fluxcd.io/namespace": "f"}}, "Flux", []ToolOwner{fluxed}, ""},
		{"Flux's", Existing{Labels: map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "f"}, Holders: []string{"kustomize-controller"}}, "Flux", []ToolOwner{kustomized}, ""},
		{"Argo CD's", Existing{Annotations: map[string]string{"argocd.argoproj.io/tracking-id": "shop:/ConfigMap:ns/a", fleet.LastApplied: "{}"}, Holders: []string{"argocd-controller"}}, "ArgoCD", []ToolOwner{app("")}, ""},
		{"Argo CD's, of any namespace", Existing{Annotations: map[string]string{"argocd.argoproj.io/tracking-id": "team_shop:/ConfigMap:ns/a"}}, "ArgoCD", []ToolOwner{app("team")}, ""},
		{"Argo CD's by its label", Existing{Labels: map[string]string{"app.kubernetes.io/instance": "shop"}, Holders: []string{"argocd-controller"}}, "ArgoCD", []ToolOwner{app("")}, ""},
		{"rendered from a chart", Existing{Labels: map[string]string{"app.kubernetes.io/instance": "shop"}}, "Helm", nil, ""},
		{"applied with kubectl", Existing{Holders: []string{"kubectl-client-side-apply"}}, "kubectl", nil, ""},
		{"applied with kubectl, of Helm", Existing{Holders: []string{"kubectl-client-side-apply"}}, "Helm", nil, "kubectl"},
		{"its note alone", Existing{Annotations: map[string]string{fleet.LastApplied: "{}"}}, "Helm", nil, "kubectl"},
		{"Helm's, applied with kubectl since", Existing{Annotations: helm, Holders: []string{"helm", "kubectl"}}, "Helm", nil, "kubectl"},
		{"both are listed", Existing{Annotations: helm, Holders: []string{"helm", "kubectl"}}, "Helm kubectl", []ToolOwner{release}, ""},
		{"an operator's", Existing{Holders: []string{"my-operator"}}, "Helm kubectl Flux ArgoCD", nil, "my-operator"},
		{"Rancher's", Existing{Labels: map[string]string{"objectset.rio.cattle.io/hash": "1"}}, "Helm kubectl Flux ArgoCD", nil, "Rancher"},
		{"controlled", Existing{Owners: []OwnerReference{{Kind: "Deployment", Name: "web", Controller: true}}}, "Helm kubectl Flux ArgoCD", nil, `Deployment "web"`},
		{"of another hub", Existing{Labels: map[string]string{fleet.HubLabel: "x"}}, "Helm", nil, `hub "x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policies := []fleet.Policy{{Adopt: fleet.AdoptAlways, TakeFrom: strings.Fields(tc.from)}}
			got := Adopt(shopHere, id, tc.object, policies, fleet.Resolve(policies, id, nil))
			if tc.says != "" {
				if got.Verdict != AdoptRefuse || !strings.Contains(got.Whose, tc.says) || got.Remedy == "" {
					t.Errorf("%+v; want a refusal that says %q", got, tc.says)
				}
				return
			}
			if got.Verdict != AdoptForced || len(got.Owners) != len(tc.owners) {
				t.Fatalf("%+v", got)
			}
			for i, o := range tc.owners {
				if got.Owners[i] != o {
					t.Errorf("%+v, want %+v", got.Owners[i], o)
				}
				if still := got.StillHas(o); still.Verdict != AdoptRefuse || still.Remedy == "" || !strings.Contains(still.Whose, o.Name) {
					t.Errorf("%+v", still)
				}
			}
		})
	}
}

// TestHowAToolLetsGo: what is said can be done as it is written, for the owner that is there.
func TestHowAToolLetsGo(t *testing.T) {
	for _, tc := range []struct {
		owner ToolOwner
		want  string
	}{
		{ToolOwner{Kind: ToolRelease, Namespace: "shop", Name: "web"}, "kubectl delete secret,configmap -n shop -l owner=helm,name=web, which leaves its objects"},
		{ToolOwner{Kind: ToolRelease, Name: "web"}, "kubectl delete secret,configmap -A -l owner=helm,name=web, which leaves its objects"},
		{ToolOwner{Kind: "Application", Name: "web"}, "argocd app delete web --cascade=false"},
		{ToolOwner{Kind: "Kustomization", Name: "web"}, "spec.prune: false"},
		{ToolOwner{Kind: "HelmRelease", Name: "web"}, "spec.suspend: true"},
	} {
		if got := (Adoption{}).StillHas(tc.owner).Remedy; !strings.Contains(got, tc.want) {
			t.Errorf("%v: %q, want %q in it", tc.owner, got, tc.want)
		}
	}
}
