package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What a controller has taken over is not deleted, whoever drops it, and policies that keep it keep it.
func TestVerifyControlled(t *testing.T) {
	rec := owned(cm("b"))
	seen := Seen{Found: true, UID: "u-b", Labels: map[string]string{fleet.HubLabel: "h"}, Proof: Proof{Applied: true, Marked: true},
		Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", rec.ID)}, Owners: []OwnerReference{{Kind: "ExternalSecret", Name: "b", Controller: true}}}
	removal := input()
	removal.Tombstone, removal.Policy = true, fleet.DeleteDelete
	kept := input()
	kept.Policies = []fleet.Policy{{Prune: fleet.PruneNever}}
	for name, tc := range map[string]struct {
		in   PruneInput
		want Verdict
	}{"a revision drops it": {input(), Release}, "its module goes": {removal, Release}, "a policy keeps it": {kept, Stay}} {
		if got, _ := Verify(tc.in, rec, seen, shopHere); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	seen.Owners = nil
	seen.Appliers = []string{"issuer"}
	if got, _ := Verify(input(), rec, seen, shopHere); got != Release {
		t.Errorf("with another one that applies all of it: %v", got)
	}
	rec.Keepers = Keepers(Existing{Appliers: []string{"issuer"}, Labels: map[string]string{"kapp.k14s.io/app": "1"}})
	seen.Labels["kapp.k14s.io/app"] = "1"
	if got, _ := Verify(input(), rec, seen, shopHere); got != Delete {
		t.Errorf("with those who were there before: %v", got)
	}
	seen.Annotations["meta.helm.sh/release-name"] = "r"
	if got, _ := Verify(input(), rec, seen, shopHere); got != Release {
		t.Errorf("with a tool that came later: %v", got)
	}
	seen.Listed = map[string]bool{"meta.helm.sh/release-name": true}
	if got, _ := Verify(input(), rec, seen, shopHere); got != Delete {
		t.Errorf("with a mark of its own: %v", got)
	}
}

// An object that was taken from one release or Kustomization is handed over to another one as any other is.
func TestTakenByAnotherOfTheSameTool(t *testing.T) {
	rec := owned(cm("b"))
	marks := func(name string) map[string]string {
		return map[string]string{"kustomize.toolkit.fluxcd.io/name": name}
	}
	noted := Keepers(Existing{Labels: marks("apps")})
	for name, tc := range map[string]struct {
		keepers, now, want string
	}{
		"the one that it was taken from": {noted, "apps", ""},
		"another one":                    {noted, "shop", `Flux's Kustomization "shop"`},
		"noted by an older agent":        {"label kustomize.toolkit.fluxcd.io/name", "shop", ""},
	} {
		rec.Keepers = tc.keepers
		if got := (Seen{Labels: marks(tc.now)}).TakenBy(rec); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
