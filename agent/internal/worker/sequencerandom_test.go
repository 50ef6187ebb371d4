package worker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestOrderAtRandom: modules that depend on each other in whatever way, circles and missing ones among them, hand objects to each other,
// are taken away and come again, and the agent starts anew in between. An object that somebody lists all the time is never made anew, and
// in the end nobody waits: all are ready, and then all are gone.
func TestOrderAtRandom(t *testing.T) {
	atRandom(t, 4, orderAtRandom)
}

func orderAtRandom(r *rig, rnd *rand.Rand) {
	names := []string{"m0", "m1", "m2", "m3"}
	var uids map[string]types.UID
	last := map[string]fleet.Sync{}
	for step := range 12 {
		final := step == 11
		var syncs []fleet.Sync
		var dead []fleet.Tombstone
		next := map[string]fleet.Sync{}
		there := map[string]bool{}
		for _, m := range names {
			there[m] = final || rnd.IntN(5) > 0
		}
		there["m0"] = true // somebody has all that nobody else has
		objects := map[string][]string{}
		for o := range 5 {
			owner := names[rnd.IntN(len(names))]
			if !there[owner] {
				owner = "m0"
			}
			objects[owner] = append(objects[owner], configMap(fmt.Sprintf("o%d", o), fmt.Sprintf("k: %q", fmt.Sprint(rnd.IntN(2)))))
		}
		for _, m := range names {
			if !there[m] {
				if old, had := last[m]; had {
					d := r.tombstone(m, fleet.DeleteDelete)
					d.DependsOn = old.DependsOn
					dead = append(dead, d)
				}
				continue
			}
			s := r.bundle(m, nil, append(objects[m], configMap(m, fmt.Sprintf("step: %q", fmt.Sprint(step))))...)
			s.Revision = int64(step + 1)
			for _, on := range names {
				if on != m && rnd.IntN(3) == 0 && (!final || there[on]) {
					s.DependsOn = append(s.DependsOn, fleet.ModuleRef{Project: "default", Name: on})
				}
			}
			syncs, next[m] = append(syncs, s), s
		}
		r.set(syncs, dead...)
		last = next
		switch rnd.IntN(4) {
		case 0:
			r.stop()
			r.start()
			r.m.Set(r.current, nil)
		case 1, 2:
			for _, m := range names {
				if _, gone := last[m]; !gone {
					continue
				}
				r.wait(m, "told of", func(x fleet.SyncStatus) bool { return x.Generation == last[m].Generation })
			}
		}
		if final || step == 0 && allThere(last) {
			for _, s := range syncs {
				r.ready(s)
			}
		}
		uids = r.sameObjects(uids, step)
	}
	var dead []fleet.Tombstone
	for _, m := range names {
		d := r.tombstone(m, fleet.DeleteDelete)
		d.DependsOn = last[m].DependsOn
		dead = append(dead, d)
	}
	r.set(nil, dead...)
	for _, m := range names {
		r.wait(m, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	}
}

// allThere reports that no module depends on one that is not there.
func allThere(all map[string]fleet.Sync) bool {
	for _, s := range all {
		for _, on := range s.DependsOn {
			if _, there := all[on.Name]; !there {
				return false
			}
		}
	}
	return true
}

// sameObjects fails if an object of those that are always listed is another one than before.
func (r *rig) sameObjects(before map[string]types.UID, step int) map[string]types.UID {
	r.t.Helper()
	out := map[string]types.UID{}
	for o := range 5 {
		name := fmt.Sprintf("o%d", o)
		u := r.get("v1", "configmaps", name)
		if u == nil {
			if before[name] != "" {
				r.t.Errorf("step %d: %s is not there any more", step, name)
			}
			continue
		}
		if out[name] = u.GetUID(); before[name] != "" && before[name] != out[name] {
			r.t.Errorf("step %d: %s was made anew", step, name)
		}
	}
	return out
}
