package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

const claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $NS-own}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"

// TestNamespaceWithKeptClaim: a namespace stays with what is kept in it; that needs no look at the cluster, however much
// happens to the rest of the module.
func TestNamespaceWithKeptClaim(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, ownNamespace, claim, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Ready && len(x.Extras) == 2 && x.Extras[0].Reason == "NamespaceNotEmpty" && strings.Contains(x.Extras[0].Message, "PersistentVolumeClaim data")
	})
	r.count.take()
	for i := range 6 {
		r.patch("v1", "configmaps", "x", "ana", fmt.Sprintf(`{"metadata":{"labels":{"towline.dev/hub":%q,"n":"%d"}}}`, r.hub, i))
		r.patch("v1", "configmaps", "x", "ana", `{"data":{"k":"other"}}`)
		r.eventually("it is corrected", func() bool { return r.data("x", "k") == "v" })
	}
	if counts, paths := r.count.take(); counts["GET"] > 0 {
		t.Errorf("%d looks at what stays anyway: %v", counts["GET"], notPatches(paths))
	}
}

// TestManyThatLeave: what the watch sees on its way out is not asked for again each time that another one is gone.
func TestManyThatLeave(t *testing.T) {
	const many = 40
	r := aloneRig(t)
	var objects []string
	for i := range many {
		objects = append(objects, strings.Replace(configMap(fmt.Sprintf("cm-%02d", i), "k: v"), "namespace: $NS}", "namespace: $NS, finalizers: [example.com/wait]}", 1))
	}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "leaving", func(x fleet.SyncStatus) bool {
		return len(x.Extras) == many && !slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
			return e.Reason != "Terminating" || !strings.Contains(e.Message, "example.com/wait")
		})
	})
	r.count.take()
	for i := range many {
		r.patch("v1", "configmaps", fmt.Sprintf("cm-%02d", i), "operator", `{"metadata":{"finalizers":null}}`)
	}
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if counts, _ := r.count.take(); counts["GET"] > 5*many {
		t.Errorf("%d looks at %d objects", counts["GET"], many)
	}
}

// What is kept of an older revision and then deleted by somebody is not listed any more.
func TestKeptObjectIsDeletedByHand(t *testing.T) {
	r := newRig(t)
	never := []fleet.Policy{{Prune: fleet.PruneNever}}
	s := r.bundle("shop", never, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", never, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == "Kept"
	})
	if err := r.res("v1", "configmaps", r.ns).Delete(context.Background(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.wait("shop", "without it", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && len(x.Extras) == 0 })
}

// What a module under prune: Never lists, never got, for it is somebody else's, and drops is not kept by it.
func TestObjectThatWasNeverGotIsNotKept(t *testing.T) {
	r := newRig(t)
	r.foreign("b", "k", "theirs")
	never := []fleet.Policy{{Prune: fleet.PruneNever}}
	s := r.bundle("shop", never, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	next := r.bundle("shop", never, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "without it", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && len(x.Extras) == 0 })
}
