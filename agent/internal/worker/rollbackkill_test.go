package worker

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestKilledInARollback: a revision that adds and drops objects stands still half through, and the one before comes back, and is put aside
// once more. Wherever the agent is killed, what both list is never made anew, what the first has stays until the second is ready, and
// nothing of the second is left behind.
func TestKilledInARollback(t *testing.T) {
	if os.Getenv("TOWLINE_SOAK") == "" {
		t.Skip("for a soak: TestKilledAnywhere goes through nearly the same writes")
	}
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		data := func(name, k string) string { return configMap(name, "k: "+k) }
		stuck := strings.ReplaceAll(deployment("stuck", 1), "nginx:1", "never-ready:1")
		first := r.bundle("shop", nil, data("both", "v1"), data("dropped", "v1"))
		second := r.bundle("shop", nil, data("both", "v2"), data("added", "v2"), stuck)
		back := r.bundle("shop", nil, data("both", "v1"), data("dropped", "v1"))
		anew := r.bundle("shop", nil, data("both", "v2"), data("added", "v3"))
		end := r.tombstone("shop", fleet.DeleteDelete)
		halfThrough := func(x fleet.SyncStatus) bool {
			return x.Generation == second.Generation && x.Phase == fleet.PhaseApplied && !x.Ready
		}
		uids := map[string]types.UID{}
		butDropped := func() map[string]string { // it may never have been made when the agent dies at once
			there := r.ours()
			delete(there, "dropped")
			return there
		}
		live([]life{
			{"a first revision", func() { r.set([]fleet.Sync{first}) },
				map[string]string{"both": "v1"}, "shop", isReady(first)},
			{"half of the second one", func() { r.set([]fleet.Sync{second}) },
				map[string]string{"both": "v2", "added": "v2"}, "shop", halfThrough},
			{"the first one again", func() { r.set([]fleet.Sync{back}) },
				map[string]string{"both": "v1"}, "shop", isReady(back)},
			{"a third one", func() { r.set([]fleet.Sync{anew}) },
				map[string]string{"both": "v2", "added": "v3"}, "shop", isReady(anew)},
			{"the end", func() { r.set(nil, end) }, map[string]string{}, "shop", isRemoved},
		}, butDropped, func(l life) {
			for name, wanted := range map[string]bool{"both": l.what != "the end", "dropped": l.what != "the end" && l.what != "a third one"} {
				u := r.get("v1", "configmaps", name)
				was, known := uids[name]
				if known && wanted && (u == nil || u.GetUID() != was) {
					r.t.Errorf("%s: %s is not what it was", l.what, name)
				}
				if u != nil && !wanted {
					r.t.Errorf("%s: %s was left behind", l.what, name)
				}
				if delete(uids, name); u != nil {
					uids[name] = u.GetUID()
				}
			}
			if left := r.get("apps/v1", "deployments", "stuck"); left != nil && l.what != "half of the second one" {
				r.eventually("the workload of the second revision is gone", func() bool { return r.get("apps/v1", "deployments", "stuck") == nil })
			}
		})
	})
}
