package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What a controller has taken over is not deleted, whoever drops it, and policies that keep it keep it.
func TestVerifyControlled(t *testing.T) {
	rec := owned(cm("b"))
	seen := Seen{Found: true, UID: "u-b", Labels: map[string]string{fleet.HubLabel: "h"}, Proof: Proof{Applied: true, Marked: true},
		Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", rec.ID)}, Controller: "ExternalSecret b"}
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
	seen.Controller = ""
	if got, _ := Verify(input(), rec, seen, shopHere); got != Delete {
		t.Errorf("without a controller: %v", got)
	}
}
