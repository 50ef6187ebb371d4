package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestRemovalOverOthersWaitsForNobody: a definition waits for objects of its kind that another module has which goes as well, but not for
// those of one that goes after it: by way of a third one, that waits for the definition itself.
func TestRemovalOverOthersWaitsForNobody(t *testing.T) {
	r := newRig(t)
	web := r.bundle("web", nil, gadgetCRD("x-kubernetes-preserve-unknown-fields: true"))
	mid := r.bundle("mid", nil, configMap("m", "k: one"))
	base := r.bundle("base", nil, "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\n")
	r.set([]fleet.Sync{web, mid, base})
	for _, s := range []fleet.Sync{web, mid} {
		r.ready(s)
	}
	r.eventually("the object of its kind is there", func() bool { return r.exists(r.group()+"/v1", "gadgets", r.ns, "g") })
	dead := map[string]fleet.Tombstone{}
	for _, m := range []string{"base", "mid", "web"} {
		dead[m] = r.tombstone(m, fleet.DeleteDelete)
	}
	last, first := dead["mid"], dead["web"]
	last.DependsOn, first.DependsOn = moduleOf("base"), moduleOf("mid")
	r.set(nil, dead["base"], last, first)
	for _, m := range []string{"web", "mid", "base"} {
		r.wait(m, "removed", isRemoved)
	}
}
