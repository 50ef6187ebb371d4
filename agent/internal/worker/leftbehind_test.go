package worker

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestObjectThatIsLeftOutlivesAnOwnerOfAnotherModule: two modules are deleted at once, or the cluster leaves; one leaves an object
// behind that the other one's owns. Either may come to it first.
func TestObjectThatIsLeftOutlivesAnOwnerOfAnotherModule(t *testing.T) {
	left := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: fleet.DeleteOrphan}}
	for name, tc := range map[string]struct {
		leaves bool
		slow   string // whose requests take their time
	}{
		"it is left first":                             {slow: "/configmaps/owner"},
		"the owner goes first":                         {slow: "/secrets/s"},
		"it is left first, the cluster leaves":         {slow: "/configmaps/owner", leaves: true},
		"the owner goes first, and the cluster leaves": {slow: "/secrets/s", leaves: true},
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
			r.count.upset(func(q *http.Request) error {
				if strings.HasSuffix(q.URL.Path, tc.slow) {
					time.Sleep(300 * time.Millisecond)
				}
				return nil
			})
			if tc.leaves {
				r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
			} else {
				r.set(nil, r.tombstone("vault", fleet.DeleteDelete), r.tombstone("shop", fleet.DeleteDelete))
			}
			for _, m := range []string{"vault", "shop"} {
				r.wait(m, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
			r.collected()
			if got := r.get("v1", "secrets", "s"); got == nil || got.GetUID() != uid || got.GetLabels()[fleet.HubLabel] != "" {
				t.Errorf("the secret is %v", got)
			}
		})
	}
}
