package worker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestHoldStopsWhatIsUnderWay: a hold that comes in the middle of a deletion stops it before the next request, whatever
// ordered the deletion, and its end lets it go on.
func TestHoldStopsWhatIsUnderWay(t *testing.T) {
	const many = 60
	for _, tc := range []struct {
		name  string
		start func(r *rig)
		hold  func(r *rig, on bool)
		verb  string
	}{
		{"tombstone", func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteDelete)) }, (*rig).holdCluster, http.MethodDelete},
		{"tombstone, module", func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteDelete)) }, (*rig).holdTombstone, http.MethodDelete},
		{"tombstone that orphans", func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteOrphan)) }, (*rig).holdTombstone, http.MethodPatch},
		{"prune", func(r *rig) {
			next := r.bundle("shop", nil, configMap("stays", "k: v"))
			r.set([]fleet.Sync{next})
			r.asks(next, many)
			next.PruneConfirmed = true
			r.set([]fleet.Sync{next})
		}, (*rig).holdCluster, http.MethodDelete},
		{"leave", func(r *rig) { r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete}) }, func(r *rig, on bool) {
			r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete, Hold: on})
		}, http.MethodDelete},
		{"leave, module", func(r *rig) { r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete}) }, func(r *rig, on bool) {
			order := fleet.Leave{Objects: fleet.LeaveDelete}
			if on {
				order.Held = []fleet.ModuleRef{{Project: "default", Name: "shop"}}
			}
			r.m.Leave(order)
		}, http.MethodDelete},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			objects := []string{configMap("stays", "k: v")}
			for i := range many {
				objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
			}
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.stop()
			requests, release := make(chan string, 1000), make(chan struct{})
			r.answers(func(q *http.Request) *http.Response {
				if q.Method == tc.verb && strings.Contains(q.URL.Path, "/configmaps/") {
					requests <- q.URL.Path
					<-release
				}
				return nil
			})
			r.start()
			r.set([]fleet.Sync{s})
			r.ready(s)
			tc.start(r)
			r.receive(requests, cap(r.m.slots)) // as many as are sent at once
			tc.hold(r, true)
			r.eventually("the hold is known", func() bool {
				r.m.mu.Lock()
				defer r.m.mu.Unlock()
				return r.m.workers[s.Module].onHold.Load()
			})
			close(release)
			r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
			if n := len(requests); n > 0 {
				t.Errorf("%d requests were sent after the hold", n)
			}
			tc.hold(r, false)
			r.receive(requests, many-cap(r.m.slots))
		})
	}
}

func (r *rig) receive(requests <-chan string, n int) {
	r.t.Helper()
	deadline := time.After(r.patience())
	for i := range n {
		select {
		case <-requests:
		case <-deadline:
			r.t.Fatalf("%d of %d requests came", i, n)
		}
	}
}

func (r *rig) holdCluster(on bool) {
	r.current.Hold = on
	r.m.Set(r.current, nil)
}

func (r *rig) holdTombstone(on bool) {
	r.current.Tombstones = slices.Clone(r.current.Tombstones) // the agent reads those that it has
	for i := range r.current.Tombstones {
		r.current.Tombstones[i].Hold = on
	}
	r.m.Set(r.current, nil)
}

// TestLeaveKeepsTheHoldOfAStray: what the hub lists no more when the cluster is to leave with all objects is held as it was said last: the order
// names what the hub knows to be held, and of a stray it knows nothing. A hub that came after the one that said so has nobody who could end that hold; and
// where the objects are kept, a hold of them keeps nothing.
func TestLeaveKeepsTheHoldOfAStray(t *testing.T) {
	ref := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }
	for objects, held := range map[string]map[string]bool{
		fleet.LeaveDelete: {"held": true, "object": true, "named": true},
		fleet.LeaveKeep:   {"named": true}, // nothing goes but marks
	} {
		d := desired{leave: fleet.Leave{Objects: objects, Held: []fleet.ModuleRef{ref("named")}},
			strays: []fleet.Sync{{Module: ref("held"), Hold: true, Lineage: 2}, {Module: ref("object"), Held: []uint64{1}, Lineage: 2}, {Module: ref("free"), Lineage: 2},
				{Module: ref("former"), Hold: true, Lineage: 1}, {Module: ref("former-object"), Held: []uint64{1}, Lineage: 1}},
			assemblage: fleet.Assemblage{Lineage: 2, Syncs: []fleet.Sync{{Module: ref("named"), Lineage: 2}, {Module: ref("ended"), Hold: true, Lineage: 2}}}}
		got := d.targets(nil)
		for _, name := range []string{"held", "object", "free", "named", "ended", "former", "former-object"} {
			if x := got[ref(name)]; x.kind != targetTombstone || x.hold != held[name] {
				t.Errorf("%s, %s: held %t, want %t", objects, name, x.hold, held[name])
			}
		}
	}
}
