package worker

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// finalized is an object that stays until the finalizer of a test is taken from it.
func finalized(object string) string {
	return strings.Replace(object, "namespace: $NS", "namespace: $NS, finalizers: [example.com/wait]", 1)
}

// unfinalizeOne takes it, unless a revision without it was applied already.
func (r *rig) unfinalizeOne(apiVersion, resource, name string) {
	r.t.Helper()
	_, err := r.res(apiVersion, resource, r.ns).Patch(context.Background(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		r.t.Fatal(err)
	}
}

// TestModuleThatIsPutAgainBeforeItIsGone: a module is deleted, and while objects of it hang by finalizers it is put again, under its own name
// or under another one, with other contents, with another kind of the same name, and with a Job that had run.
func TestModuleThatIsPutAgainBeforeItIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		as      string
		restart bool
	}{
		"under its name":                 {as: "shop"},
		"under its name, with a restart": {as: "shop", restart: true},
		"under another one":              {as: "store"},
		"under another, with a restart":  {as: "store", restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			job := finalized(jobText("once", ""))
			s := r.bundle("shop", nil, finalized(configMap("a", "k: v1")), finalized(configMap("b", "k: v1")), configMap("c", "k: v1"), job)
			r.set([]fleet.Sync{s})
			r.ready(s) // the Job has run
			a, once := r.uidOf("v1", "configmaps", "a"), r.uidOf("batch/v1", "jobs", "once")
			dead := r.tombstone("shop", fleet.DeleteDelete)
			r.set(nil, dead)
			r.eventually("the Job, which goes first, hangs", func() bool { return r.get("batch/v1", "jobs", "once").GetDeletionTimestamp() != nil })
			if tc.restart {
				r.stop()
				r.forget()
				r.start()
			}
			again := r.bundle(tc.as, nil, configMap("a", "k: v2"), strings.Replace(configMap("b", "k: v2"), "kind: ConfigMap", "kind: Secret\nstringData: {k: v2}", 1), configMap("c", "k: v2"), jobText("once", ""))
			if tc.as == "shop" {
				r.set([]fleet.Sync{again})
			} else {
				r.set([]fleet.Sync{again}, dead)
			}
			r.eventually("what was not gone yet is as listed", func() bool { return r.data("a", "k") == "v2" && r.data("c", "k") == "v2" })
			r.unfinalizeOne("v1", "configmaps", "b")
			r.unfinalizeOne("batch/v1", "jobs", "once")
			r.eventually("the Job runs once more", func() bool {
				j := r.get("batch/v1", "jobs", "once")
				return j != nil && j.GetUID() != once
			})
			r.wait(tc.as, "applied", func(x fleet.SyncStatus) bool {
				return x.Generation == again.Generation && x.Phase == fleet.PhaseApplied && x.Extra() == 0
			})
			if r.get("v1", "secrets", "b") == nil || r.uidOf("v1", "configmaps", "a") != a {
				t.Error("what is listed is not there, or was made anew")
			}
			r.eventually("b is gone", func() bool { return r.get("v1", "configmaps", "b") == nil })
			if tc.as != "shop" {
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
		})
	}
}
