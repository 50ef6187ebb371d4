package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestObjectWithAFinalizerOfTheCollector: a manifest lists, or somebody puts, one of the two finalizers by which an object says what the garbage
// collector does with what it owns. It goes with its module, with a revision that drops it, and to be made anew; what it owns stays only if it says so.
func TestObjectWithAFinalizerOfTheCollector(t *testing.T) {
	for _, finalizer := range []string{"orphan", "foregroundDeletion"} {
		for _, how := range []string{"removed", "dropped", "made anew", "put by somebody"} {
			t.Run(finalizer+" "+how, func(t *testing.T) {
				r := newRig(t)
				policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}
				owner := func(value, more string) string {
					return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner, namespace: $NS%s}\ndata: {k: %s}\nimmutable: true\n", more, value)
				}
				more := ", finalizers: [" + finalizer + "]"
				if how == "put by somebody" {
					more = ""
				}
				s := r.bundle("shop", policies, owner("one", more), configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				uid := r.uidOf("v1", "configmaps", "owner")
				if more == "" {
					r.patch("v1", "configmaps", "owner", "ana", `{"metadata":{"finalizers":["`+finalizer+`"]}}`)
				}
				r.create("v1", "configmaps", r.ns, r.configMapObject("owned", nil, nil))
				r.ownedBy("configmaps", "owned", "owner")
				switch how {
				case "dropped":
					s = r.bundle("shop", policies, configMap("a", "k: v"))
				case "made anew":
					s = r.bundle("shop", policies, owner("two", more), configMap("a", "k: v"))
				default:
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					r.wait("shop", "removed", isRemoved)
				}
				if how == "dropped" || how == "made anew" {
					r.set([]fleet.Sync{s})
					r.ready(s)
				}
				r.eventually("it is gone", func() bool { u := r.get("v1", "configmaps", "owner"); return u == nil || u.GetUID() != uid })
				r.collected()
				if stays := r.get("v1", "configmaps", "owned") != nil; stays != (finalizer == "orphan") {
					t.Errorf("what it owned stays: %t", stays)
				}
			})
		}
	}
}
