package worker

import (
	"slices"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Wherever an agent is killed: what keepLegacy keeps is under the revision that listed it last, goes when the tracker of that one is
// deleted, and nothing else does.
func TestKilledAnywhereWithWhatKeepLegacyKeeps(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		yes, no := true, false
		keep, drop := []fleet.Policy{{KeepLegacy: &yes}}, []fleet.Policy{{KeepLegacy: &no}}
		revised := func(revision int64, policies []fleet.Policy, names ...string) fleet.Sync {
			var objects []string
			for _, n := range names {
				objects = append(objects, configMap(n, "k: v"))
			}
			s := r.bundle("shop", policies, objects...)
			s.Revision = revision
			return s
		}
		key := func(name string) uint64 {
			return assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: name})
		}
		first := revised(1, keep, "a", "b", "old")
		second := revised(2, keep, "a", "b")
		third := revised(3, keep, "a")
		recycled := revised(3, keep, "a")
		recycled.Recycles = []fleet.Recycle{{Revision: 1, Keys: []uint64{key("old")}}}
		unasked := revised(3, keep, "a")
		unasked.Recycles = []fleet.Recycle{{Revision: 1, Keys: recycled.Recycles[0].Keys, Unasked: true}}
		off := revised(4, drop, "a")
		gone := r.tombstone("shop", fleet.DeleteDelete)
		keeps := func(s fleet.Sync, kept map[string]int64) func(fleet.SyncStatus) bool {
			return func(x fleet.SyncStatus) bool {
				same := x.Ready && x.Generation == s.Generation && x.Extra() == len(kept) && len(x.Extras) == len(kept)
				for _, e := range x.Extras {
					same = same && e.Reason == "KeptLegacy" && e.Revision == kept[e.ID.Name]
				}
				return same
			}
		}
		set := func(s fleet.Sync) func() { return func() { r.set([]fleet.Sync{s}) } }
		all := map[string]string{"a": "v", "b": "v", "old": "v"}
		live([]life{
			{"a first revision", set(first), all, "shop", isReady(first)},
			{"the same again", set(first), all, "shop", isReady(first)},
			{"one that drops old", set(second), all, "shop", keeps(second, map[string]int64{"old": 1})},
			{"the same again", set(second), all, "shop", keeps(second, map[string]int64{"old": 1})},
			{"one that drops b", set(third), all, "shop", keeps(third, map[string]int64{"old": 1, "b": 2})},
			{"the tracker of r1 was deleted before the hub had heard what is here", set(unasked), all, "shop", func(x fleet.SyncStatus) bool {
				return x.Ready && x.Generation == unasked.Generation && slices.Equal(names(x.Extras, "Kept"), []string{"old"})
			}},
			{"the tracker of r1 is deleted", set(recycled), map[string]string{"a": "v", "b": "v"}, "shop", keeps(recycled, map[string]int64{"b": 2})},
			{"keepLegacy is turned off", set(off), map[string]string{"a": "v"}, "shop", keeps(off, nil)},
			{"the end of the module", func() { r.set(nil, gone) }, map[string]string{}, "shop", isRemoved},
		}, r.ours, func(life) {})
	})
}
