package worker

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestKilledInAMove: an object goes from one module to another, and before that is through both change at once: it goes back, or on to a
// third one, or its new module is deleted. Wherever the agent is killed, it is never made anew, nor left behind, nor kept by two.
func TestKilledInAMove(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		r.judges.Store(true)
		data := func(name, k string) string { return configMap(name, "k: "+k) }
		shop := r.bundle("shop", nil, data("a", "v1"), data("moves", "v1"))
		other := r.bundle("other", nil, data("o", "v1"))
		less := r.bundle("shop", nil, data("a", "v1"))
		more := r.bundle("other", nil, data("o", "v1"), data("moves", "v2"))
		again := r.bundle("shop", nil, data("a", "v2"), data("moves", "v3"))
		without := r.bundle("other", nil, data("o", "v2"))
		third := r.bundle("third", nil, data("moves", "v4"))
		last := r.bundle("shop", nil, data("a", "v3"))
		gone, end := r.tombstone("other", fleet.DeleteDelete), r.tombstone("third", fleet.DeleteDelete)
		var uid types.UID
		live([]life{
			{"a first revision of both", func() { r.set([]fleet.Sync{shop, other}) },
				map[string]string{"a": "v1", "moves": "v1", "o": "v1"}, "shop", isReady(shop)},
			{"it goes to the other one", func() { r.set([]fleet.Sync{less, more}) },
				map[string]string{"a": "v1", "moves": "v2", "o": "v1"}, "other", isReady(more)},
			{"it goes back, and both change", func() { r.set([]fleet.Sync{again, without}) },
				map[string]string{"a": "v2", "moves": "v3", "o": "v2"}, "shop", isReady(again)},
			{"it goes to a third one, and the other one ends", func() { r.set([]fleet.Sync{last, third}, gone) },
				map[string]string{"a": "v3", "moves": "v4"}, "other", isRemoved},
			{"the third one ends", func() { r.set([]fleet.Sync{last}, gone, end) },
				map[string]string{"a": "v3"}, "third", isRemoved},
		}, r.ours, func(l life) {
			u := r.get("v1", "configmaps", "moves")
			switch {
			case (u != nil) != (l.is["moves"] != ""):
				r.t.Errorf("%s: there is %v", l.what, u)
			case u != nil && uid == "":
				uid = u.GetUID()
			case u != nil && u.GetUID() != uid:
				r.t.Errorf("%s: it was made anew", l.what)
			}
		})
	})
}
