package worker

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestObjectThatIsLeftOutlivesAnOwnerOfAnotherModule: two modules are deleted at once, or the cluster leaves; one leaves an object
// behind that the other one's owns. Either may come to it first.
func TestObjectThatIsLeftOutlivesAnOwnerOfAnotherModule(t *testing.T) {
	left := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: fleet.DeleteOrphan}}
	for name, tc := range map[string]struct{ leaves, last bool }{
		"it is left first":                             {},
		"the owner goes first":                         {last: true},
		"it is left first, and the cluster leaves":     {leaves: true},
		"the owner goes first, and the cluster leaves": {leaves: true, last: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			vault, shop := r.bundle("vault", left, certificate("b2xk")), r.bundle("shop", nil, configMap("owner", "k: v"))
			r.set([]fleet.Sync{vault, shop})
			r.ready(vault)
			r.ready(shop)
			uid := r.uidOf("v1", "secrets", "s")
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			gone := make(chan struct{})
			if tc.last {
				r.count.upset(func(q *http.Request) error {
					if q.Header.Get("Content-Type") == string(types.MergePatchType) && strings.HasSuffix(q.URL.Path, "/secrets/s") {
						<-gone
					}
					return nil
				})
			}
			tombs := []fleet.Tombstone{r.tombstone("vault", fleet.DeleteDelete), r.tombstone("shop", fleet.DeleteDelete)}
			remove := func(held bool) {
				if tc.leaves {
					order := fleet.Leave{Objects: fleet.LeaveDelete}
					if held {
						order.Held = []fleet.ModuleRef{shop.Module}
					}
					r.m.Leave(order)
					return
				}
				tombs[1].Hold = held
				r.set(nil, tombs...)
			}
			removed := func(m string) {
				r.wait(m, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
			remove(!tc.last)
			if tc.last {
				removed("shop")
			}
			close(gone)
			removed("vault")
			remove(false)
			removed("shop")
			r.collected()
			if got := r.get("v1", "secrets", "s"); got == nil || got.GetUID() != uid || got.GetLabels()[fleet.HubLabel] != "" {
				t.Errorf("the secret is %v", got)
			}
		})
	}
}

// TestLeavingNeedsNoOwners: where nothing is deleted, nobody asks with what an object goes that is left.
func TestLeavingNeedsNoOwners(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.create("v1", "configmaps", r.ns, r.configMapObject("owner", nil, nil))
	r.ownedBy("secrets", "s", "owner")
	r.count.upset(func(q *http.Request) error {
		if strings.HasSuffix(q.URL.Path, "/configmaps/owner") {
			return errors.New("not now")
		}
		return nil
	})
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveKeep})
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if got := r.get("v1", "secrets", "s"); got == nil || len(got.GetOwnerReferences()) != 1 || got.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("the secret is %v", got)
	}
}

// TestRemovalTellsOfItselfOnly: what a removal left says nothing of the next one, after the module was put again: with another policy
// that deletes the object.
func TestRemovalTellsOfItselfOnly(t *testing.T) {
	r := newRig(t)
	removed := func(delete string) fleet.SyncStatus {
		t.Helper()
		s := r.bundle("vault", []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: delete}}, certificate("b2xk"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		stone := r.tombstone("vault", fleet.DeleteDelete)
		r.set(nil, stone)
		x := r.wait("vault", "removed", func(x fleet.SyncStatus) bool {
			return x.Phase == fleet.PhaseRemoved && x.Generation == stone.Generation
		})
		r.set(nil)
		return x
	}
	if x := removed(fleet.DeleteOrphan); !strings.Contains(x.Message, "/s") || r.get("v1", "secrets", "s") == nil {
		t.Errorf("status %+v", x)
	}
	if x := removed(fleet.DeleteDelete); x.Message != "" || r.get("v1", "secrets", "s") != nil {
		t.Errorf("status %+v", x)
	}
}

// TestRemovalTellsWhatItLeftBeforeARestart: the agent is started anew in the middle of a removal, and once more after it.
func TestRemovalTellsWhatItLeftBeforeARestart(t *testing.T) {
	r := newRig(t)
	s := r.bundle("vault", []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: fleet.DeleteOrphan}}, certificate("b2xk"), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "somebody", `{"metadata":{"finalizers":["example.com/wait"]}}`)
	stone := r.tombstone("vault", fleet.DeleteDelete)
	r.set(nil, stone)
	r.wait("vault", "left with the object that somebody holds", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoving && len(x.Extras) == 1 && r.get("v1", "secrets", "s").GetLabels()[fleet.HubLabel] == ""
	})
	again := func() {
		t.Helper()
		r.stop()
		r.mu.Lock()
		delete(r.statuses, stone.Module)
		r.mu.Unlock()
		r.start()
		r.set(nil, stone)
	}
	again()
	r.patch("v1", "configmaps", "a", "somebody", `{"metadata":{"finalizers":null}}`)
	removed := func() {
		t.Helper()
		x := r.wait("vault", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		if !strings.HasPrefix(x.Message, "kept: ") || !strings.Contains(x.Message, "/s") {
			t.Errorf("status %+v", x)
		}
	}
	removed()
	again()
	removed()
	r.set(nil)
	r.eventually("the hub has heard it", func() bool { return len(r.m.inventory.Left(stone.Module)) == 0 })
}

// TestWhatGoesWithItsOwnerIsNotKept: an operator has made its resource the owner of what the module lists, as External Secrets or Cluster
// API do, and the module has both. What goes with its owner is not said to be left to it.
func TestWhatGoesWithItsOwnerIsNotKept(t *testing.T) {
	for name, others := range map[string]bool{"the owner is the module's": false, "the owner is another module's that goes, too": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			lists, stones := []fleet.Sync{r.bundle("vault", nil, certificate("b2xk"), configMap("owner", "k: v"))}, []string{"vault"}
			if others {
				lists, stones = []fleet.Sync{r.bundle("vault", nil, certificate("b2xk")), r.bundle("shop", nil, configMap("owner", "k: v"))}, []string{"vault", "shop"}
			}
			r.set(lists)
			for _, s := range lists {
				r.ready(s)
			}
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			var going []fleet.Tombstone
			for _, name := range stones {
				going = append(going, r.tombstone(name, fleet.DeleteDelete))
			}
			r.set(nil, going...)
			x := r.wait("vault", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			r.eventually("the secret goes with its owner", func() bool { return r.get("v1", "secrets", "s") == nil })
			if x.Message != "" {
				t.Errorf("status %+v", x)
			}
		})
	}
}
