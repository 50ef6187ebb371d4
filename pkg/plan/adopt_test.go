package plan

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestAdopt(t *testing.T) {
	id := cm("a")
	wrote, marked := Proof{Applied: true}, Proof{Applied: true, Marked: true}
	text := func(pairs ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	ourHub := text(fleet.HubLabel, "h")
	mark := func(m fleet.ModuleRef, cluster string, of fleet.ObjectID) map[string]string {
		return text(fleet.OwnerAnnotation, fleet.OwnerMark(m, cluster, of))
	}
	own := mark(shop, "c", id)
	always, kind := fleet.Policy{Adopt: fleet.AdoptAlways}, fleet.Policy{Adopt: fleet.AdoptAlways, Match: fleet.PolicyMatch{Kinds: []string{"ConfigMap"}}}
	never := fleet.Policy{Adopt: fleet.AdoptNever}
	controlled := []OwnerReference{{Kind: "Job", Name: "j"}, {Kind: "Deployment", Name: "web", Controller: true}}
	for _, tc := range []struct {
		name    string
		object  Existing
		policy  fleet.Policy
		verdict AdoptVerdict
		says    string
	}{
		{"of somebody", Existing{Creator: "ana"}, fleet.Policy{}, AdoptIfEqual, `made by "ana"`},
		{"of somebody, Always", Existing{Creator: "ana"}, always, AdoptForced, ""},
		{"of somebody, Never", Existing{Creator: "ana"}, never, AdoptRefuse, `made by "ana"`},

		{"ours", Existing{Labels: ourHub, Annotations: own, Proof: marked}, never, AdoptOwn, ""},
		{"ours, with a controller since", Existing{Labels: ourHub, Annotations: own, Proof: marked, Owners: controlled}, never, AdoptOwn, ""},
		{"a copy of ours", Existing{Labels: ourHub, Annotations: own}, fleet.Policy{}, AdoptIfEqual, ""},
		{"a backup's copy of ours under another name", Existing{Labels: ourHub, Annotations: mark(shop, "c", cm("b")), Proof: marked}, fleet.Policy{}, AdoptIfEqual, "owner mark"},
		{"let go", Existing{Creator: "towline", Proof: wrote}, fleet.Policy{}, AdoptAgain, ""},
		{"let go, Never", Existing{Creator: "towline", Proof: wrote}, never, AdoptRefuse, ""},
		{"let go, marks that somebody pasted", Existing{Labels: ourHub, Annotations: own, Proof: wrote}, fleet.Policy{}, AdoptAgain, ""},
		{"our label taken off", Existing{Annotations: own, Proof: wrote}, fleet.Policy{}, AdoptAgain, ""},
		{"of the cluster that this one was restored from", Existing{Labels: ourHub, Annotations: mark(shop, "x", id), Proof: marked}, fleet.Policy{}, AdoptAgain, ""},
		{"let go, Helm's since", Existing{Annotations: text("meta.helm.sh/release-name", "r"), Proof: wrote}, fleet.Policy{}, AdoptRefuse, `Helm release "r" (annotation meta.helm.sh/release-name)`},

		{"of another module", Existing{Labels: ourHub, Annotations: mark(other, "c", id), Proof: marked}, always, AdoptRefuse, "belongs to module other"},
		{"of another module, label taken off", Existing{Annotations: mark(other, "c", id), Proof: wrote}, fleet.Policy{}, AdoptRefuse, "module other, without its label"},
		{"of another module, label taken off, Always", Existing{Annotations: mark(other, "c", id), Proof: wrote}, always, AdoptForced, ""},
		{"of another hub", Existing{Labels: text(fleet.HubLabel, "x"), Annotations: own, Proof: marked}, fleet.Policy{}, AdoptRefuse, `hub "x"`},
		{"of another hub, Always", Existing{Labels: text(fleet.HubLabel, "x"), Annotations: own, Proof: marked}, always, AdoptForced, ""},

		{"controlled", Existing{Owners: controlled}, fleet.Policy{}, AdoptRefuse, `controlled by Deployment "web"`},
		{"controlled, Always", Existing{Owners: controlled}, always, AdoptRefuse, "match.kinds"},
		{"controlled, Always by its kind", Existing{Owners: controlled}, kind, AdoptForced, ""},
		{"owned, not controlled", Existing{Owners: controlled[:1]}, fleet.Policy{}, AdoptIfEqual, ""},
		{"of Argo CD by its label", Existing{Appliers: []string{"argocd-controller"}}, fleet.Policy{}, AdoptRefuse, "belongs to Argo CD (field manager argocd-controller)"},
		{"of Argo CD by its label, Always", Existing{Appliers: []string{"argocd-controller"}}, always, AdoptForced, ""},
		{"applied by a person", Existing{Appliers: []string{"kubectl"}}, fleet.Policy{}, AdoptIfEqual, ""},
		{"of Argo CD", Existing{Annotations: text("argocd.argoproj.io/tracking-id", "shop:/ConfigMap:ns/a")}, fleet.Policy{}, AdoptRefuse, "Argo CD"},
		{"of Flux", Existing{Labels: text("kustomize.toolkit.fluxcd.io/name", "apps")}, fleet.Policy{}, AdoptRefuse, `Flux's Kustomization "apps"`},
		{"of Flux, Always", Existing{Labels: text("kustomize.toolkit.fluxcd.io/name", "apps")}, always, AdoptForced, ""},
		{"of Rancher", Existing{Labels: text("objectset.rio.cattle.io/hash", "1f")}, fleet.Policy{}, AdoptRefuse, "Rancher"},
		{"of the API server", Existing{Labels: text("kubernetes.io/bootstrapping", "rbac-defaults")}, fleet.Policy{}, AdoptRefuse, "the API server"},
		{"rendered from a chart", Existing{Creator: "kubectl", Labels: text("app.kubernetes.io/managed-by", "Helm", "app.kubernetes.io/instance", "r")}, fleet.Policy{}, AdoptIfEqual, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policies := []fleet.Policy{tc.policy}
			got := Adopt(shopHere, id, tc.object, policies, fleet.Resolve(policies, id, nil))
			if got.Verdict != tc.verdict || !strings.Contains(got.Whose+"; "+got.Remedy, tc.says) {
				t.Errorf("%+v; want %v with %q", got, tc.verdict, tc.says)
			}
			if says := got.Whose != "" && got.Remedy != ""; !says && (got.Verdict == AdoptRefuse || got.Verdict == AdoptIfEqual) {
				t.Errorf("%+v does not say whose it is and what to do", got)
			}
		})
	}
}
