package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// The default ServiceAccount is every pod's.
func TestDefaultServiceAccountStays(t *testing.T) {
	for _, how := range []string{"prune", "tombstone"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.eventually("it is made", func() bool { return r.get("v1", "serviceaccounts", "default") != nil })
			uid := r.uidOf("v1", "serviceaccounts", "default")
			s := r.bundle("shop", nil, configMap("a", "k: v"), "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: $NS}\n")
			r.set([]fleet.Sync{s})
			r.ready(s)
			if how == "prune" {
				s = r.bundle("shop", nil, configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				r.ready(s)
			} else {
				r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
			if u := r.get("v1", "serviceaccounts", "default"); u == nil || u.GetUID() != uid {
				t.Error("the namespace's default ServiceAccount was deleted, and with it the tokens of every pod in it")
			}
		})
	}
}
