package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// owns runs an operator that makes an object the owner of a Secret whenever it is not, for as long as it sees the owner.
func (r *rig) owns(owner, secret string) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	uid := r.uidOf("v1", "configmaps", owner)
	w, err := r.res("v1", "secrets", r.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + secret})
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok || len(u.GetOwnerReferences()) > 0 {
				continue
			}
			body := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"controller":true}]}}`, owner, uid)
			_, _ = r.res("v1", "secrets", r.ns).Patch(ctx, secret, "application/merge-patch+json", []byte(body), metav1.PatchOptions{FieldManager: "operator"})
		}
	}()
	return func() {
		cancel()
		w.Stop()
		<-ended
	}
}

// TestOwnerThatTakesItsObjectBackStays: an operator makes its resource the owner of what a module lists or leaves, again and again. The
// resource is not deleted: the garbage collector would take the object along. It goes when the operator is gone.
func TestOwnerThatTakesItsObjectBackStays(t *testing.T) {
	left := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: fleet.DeleteOrphan}}
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("left %t", leaves), func(t *testing.T) {
			r := newRig(t)
			r.recheck = 5 * time.Second
			r.restart()
			s := r.bundle("shop", left, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.uidOf("v1", "secrets", "s")
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			stop := r.owns("owner", "s")
			defer stop()
			next := r.bundle("shop", left, configMap("a", "k: v"), certificate("b2xk"))
			if leaves {
				next = r.bundle("shop", left, configMap("a", "k: v"))
			}
			r.set([]fleet.Sync{next})
			r.wait("shop", "stuck with the owner", func(x fleet.SyncStatus) bool {
				for _, e := range x.Extras {
					if strings.Contains(e.Message, "its owner is set again each time") {
						return x.Generation == next.Generation
					}
				}
				return false
			})
			r.collected()
			if got := r.get("v1", "secrets", "s"); got == nil || got.GetUID() != uid || r.get("v1", "configmaps", "owner") == nil {
				t.Fatalf("the secret is %v", got)
			}
			stop()
			again := r.again(next)
			r.set([]fleet.Sync{again})
			r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
			r.collected()
			if got := r.get("v1", "secrets", "s"); got == nil || got.GetUID() != uid {
				t.Fatalf("the secret is %v", got)
			}
		})
	}
}
