package worker

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// What a revision dropped, or a module had that is gone, is put back from a backup, with its marks and managed fields, while the agent runs:
// it is the module's again, or a stray, and waits for a confirm. A copy is none, however often it changes.
func TestWhatABackupPutsBackIsTold(t *testing.T) {
	r := newRig(t)
	kept, dropped := configMap("kept", "k: v"), configMap("dropped", "k: v")
	s, gone := r.bundle("shop", nil, kept, dropped), r.bundle("gone", nil, configMap("of-gone", "k: v"))
	r.set([]fleet.Sync{s, gone})
	r.ready(s)
	r.ready(gone)
	backup := r.get("v1", "configmaps", "dropped").DeepCopy()
	ofGone := r.get("v1", "configmaps", "of-gone").DeepCopy()
	s = r.bundle("shop", nil, kept)
	removed := r.tombstone("gone", fleet.DeleteDelete)
	r.set([]fleet.Sync{s}, removed)
	r.wait("shop", "dropped", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && x.Extra() == 0 })
	r.wait("gone", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.set([]fleet.Sync{s})
	copied := backup.DeepCopy()
	copied.SetName("copied")
	copied.SetUID("")
	copied.SetResourceVersion("")
	copied.SetManagedFields(nil)
	if _, err := r.res("v1", "configmaps", r.ns).Create(context.Background(), copied, metav1.CreateOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	r.putBack(backup)
	r.putBack(ofGone)
	r.wait("gone", "a stray", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseStray && x.Extra() == 1 })
	for i := range 3 {
		r.patch("v1", "configmaps", "copied", "kubectl", fmt.Sprintf(`{"data":{"k":"%d"}}`, i))
	}
	asks := func(x fleet.SyncStatus) bool {
		return x.Ready && x.Waiting() == 1 && x.Extra() == 1 && x.Extras[0].ID.Name == "dropped"
	}
	r.wait("shop", "asks", asks)
	s = r.again(s)
	s.PruneConfirmed = true
	r.set([]fleet.Sync{s})
	r.eventually("it goes when that is confirmed", func() bool { return r.get("v1", "configmaps", "dropped") == nil })
	for _, name := range []string{"kept", "copied", "of-gone"} {
		if r.get("v1", "configmaps", name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
}

// TestWhatIsFoundAndDeletedByHandIsForgotten: what came back and waits for a confirm is told no more when a person deletes it instead.
func TestWhatIsFoundAndDeletedByHandIsForgotten(t *testing.T) {
	r := newRig(t)
	kept, dropped := configMap("kept", "k: v"), configMap("dropped", "k: v")
	s := r.bundle("shop", nil, kept, dropped)
	r.set([]fleet.Sync{s})
	r.ready(s)
	backup := r.get("v1", "configmaps", "dropped").DeepCopy()
	s = r.bundle("shop", nil, kept)
	r.set([]fleet.Sync{s})
	r.wait("shop", "dropped", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && x.Extra() == 0 })
	r.putBack(backup)
	r.wait("shop", "asks", func(x fleet.SyncStatus) bool { return x.Waiting() == 1 && x.Extra() == 1 })
	r.delete("v1", "configmaps", "dropped")
	r.wait("shop", "asks no more", func(x fleet.SyncStatus) bool { return x.Ready && x.Waiting() == 0 && x.Extra() == 0 })
}
