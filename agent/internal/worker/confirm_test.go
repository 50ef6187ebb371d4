package worker

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// A person confirmed one list. What is found later, as after the cluster's store went back, is on none.
func TestConfirmIsOfWhatWasAsked(t *testing.T) {
	r := newRig(t)
	var objects []string
	for i := range 24 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
	}
	s := r.bundle("shop", nil, append(objects, configMap("old", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	back := r.get("v1", "configmaps", "old").DeepCopy()
	s = r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, objects[:8]...)
	r.set([]fleet.Sync{next})
	r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 16 })
	next.PruneConfirmed = true
	r.set([]fleet.Sync{next})
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Ready && x.Waiting() == 0 && len(x.Extras) == 0 })
	// the store of the cluster goes back: what an earlier revision dropped is there again
	r.putBack(back)
	r.m.WentBack()
	status := r.wait("shop", "told of what came back", func(x fleet.SyncStatus) bool { return x.Waiting() == 1 || r.get("v1", "configmaps", "old") == nil })
	if status.Waiting() != 1 || r.get("v1", "configmaps", "old") == nil {
		t.Fatalf("what nobody was asked about: %+v", status.Extras)
	}
	next = r.again(next)
	next.PruneConfirmed = false // the hub asks again
	r.set([]fleet.Sync{next})
	r.wait("shop", "asked", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && x.Waiting() == 1 })
	next = r.again(next)
	next.PruneConfirmed = true
	r.set([]fleet.Sync{next})
	r.eventually("it goes once that is confirmed", func() bool { return r.get("v1", "configmaps", "old") == nil })
}

// putBack makes an object again as it was, managed fields and all.
func (r *rig) putBack(u *unstructured.Unstructured) {
	r.t.Helper()
	c := u.DeepCopy()
	managed := c.GetManagedFields()
	c.SetUID("")
	c.SetResourceVersion("")
	c.SetManagedFields(nil)
	made, err := r.res("v1", "configmaps", r.ns).Create(context.Background(), c, metav1.CreateOptions{FieldManager: "restore"})
	if err != nil {
		r.t.Fatal(err)
	}
	made.SetManagedFields(managed)
	if _, err := r.res("v1", "configmaps", r.ns).Update(context.Background(), made, metav1.UpdateOptions{FieldManager: "restore"}); err != nil {
		r.t.Fatal(err)
	}
}
