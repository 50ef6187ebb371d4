package worker

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/pkg/fleet"
)

// namespaceAnew deletes a namespace with all that is in it, and makes another one of its name. The API server lets nothing in before who
// admits it has heard that it is another one.
func (r *rig) namespaceAnew(name string, anew map[string]any) {
	r.t.Helper()
	namespaces := r.res("v1", "namespaces", "")
	if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the namespace is gone", func() bool {
		_, err := namespaces.Create(context.Background(), &unstructured.Unstructured{Object: anew}, metav1.CreateOptions{FieldManager: "somebody"})
		return err == nil
	})
	try := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "try", "namespace": name}}
	r.eventually("the namespace takes objects", func() bool {
		_, err := r.res("v1", "configmaps", name).Create(context.Background(), &unstructured.Unstructured{Object: try},
			metav1.CreateOptions{FieldManager: "somebody", DryRun: []string{metav1.DryRunAll}})
		return err == nil
	})
}

// backUp makes an object as a tool does that puts back what it saved, with all that stood on it or without the notes of the API server.
func backUp(t *testing.T, of dynamic.ResourceInterface, saved *unstructured.Unstructured, whole bool) {
	t.Helper()
	c := saved.DeepCopy()
	managed := c.GetManagedFields()
	c.SetUID("")
	c.SetResourceVersion("")
	c.SetManagedFields(nil)
	made, err := of.Create(context.Background(), c, metav1.CreateOptions{FieldManager: "backup"})
	if err == nil && whole {
		made.SetManagedFields(managed)
		_, err = of.Update(context.Background(), made, metav1.UpdateOptions{FieldManager: "backup"})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamespaceThatIsMadeAnewWhileAPruneWaits: what a person confirms are the objects that were there when he was asked. Others of their
// names are made by hand, copied, or put back from a backup before that; nothing of it goes with the confirm.
func TestNamespaceThatIsMadeAnewWhileAPruneWaits(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			ns := r.ns + "-x"
			anew := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}
			r.clusterScoped("namespaces", "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-x}\n")
			var objects []string
			for i := range 30 {
				objects = append(objects, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm-%02d, namespace: $NS-x}\ndata: {k: v}\n", i))
			}
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			inside := r.res("v1", "configmaps", ns)
			saved := map[string]*unstructured.Unstructured{}
			for _, name := range []string{"cm-01", "cm-02"} {
				u, err := inside.Get(context.Background(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				saved[name] = u
			}
			next := r.bundle("shop", nil, objects[18:]...)
			r.set([]fleet.Sync{next})
			r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 18 })
			if restart {
				r.stop()
			}
			r.namespaceAnew(ns, anew)
			r.create("v1", "configmaps", ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "cm-00", "namespace": ns}})
			backUp(t, inside, saved["cm-01"], false)
			backUp(t, inside, saved["cm-02"], true)
			if restart {
				r.forget()
				r.start()
			}
			next.PruneConfirmed = true // of the list of before
			r.set([]fleet.Sync{next})
			r.eventually("what is listed is there again", func() bool {
				_, err := inside.Get(context.Background(), "cm-29", metav1.GetOptions{})
				return err == nil
			})
			status := r.wait("shop", "through", func(x fleet.SyncStatus) bool { return x.Ready && x.Waiting() == 1 && x.Extra() == 1 })
			for _, x := range status.Extras {
				if x.ID.Name != "cm-02" {
					t.Errorf("what waits is %s", x.ID)
				}
			}
			stay := func(names ...string) {
				t.Helper()
				for _, name := range names {
					if _, err := inside.Get(context.Background(), name, metav1.GetOptions{}); err != nil {
						t.Errorf("%s, which nobody was asked about: %v", name, err)
					}
				}
			}
			stay("cm-00", "cm-01", "cm-02")
			next = r.again(next)
			next.PruneConfirmed = false
			r.set([]fleet.Sync{next})
			r.wait("shop", "asked", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 1 })
			next = r.again(next)
			next.PruneConfirmed = true
			r.set([]fleet.Sync{next})
			r.eventually("what was confirmed is gone", func() bool {
				_, err := inside.Get(context.Background(), "cm-02", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
			stay("cm-00", "cm-01")
		})
	}
}

// TestOwnNamespaceThatIsMadeAnewWhileAPruneWaits: the Namespace itself is to go, with all that the module has in it. A person deletes it and
// makes another one, or a backup puts it back with our marks, and puts things of his own into it.
func TestOwnNamespaceThatIsMadeAnewWhileAPruneWaits(t *testing.T) {
	for _, marked := range []bool{false, true} {
		t.Run(fmt.Sprintf("marked %t", marked), func(t *testing.T) {
			r := newRig(t)
			ns := r.ns + "-own"
			t.Cleanup(func() {
				_ = r.res("v1", "namespaces", "").Delete(context.Background(), ns, metav1.DeleteOptions{})
			})
			objects := []string{configMap("stays", "k: v"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n"}
			for i := range 15 {
				objects = append(objects, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm-%02d, namespace: $NS-own}\ndata: {k: v}\n", i))
			}
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			own, err := r.res("v1", "namespaces", "").Get(context.Background(), ns, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			next := r.bundle("shop", nil, objects[0])
			r.set([]fleet.Sync{next})
			r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 16 })
			anew := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}
			if marked {
				anew["metadata"] = map[string]any{"name": ns, "labels": own.Object["metadata"].(map[string]any)["labels"], "annotations": own.Object["metadata"].(map[string]any)["annotations"]}
			}
			r.namespaceAnew(ns, anew)
			r.create("v1", "configmaps", ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "cm-00", "namespace": ns}})
			next.PruneConfirmed = true
			r.set([]fleet.Sync{next})
			r.wait("shop", "done", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == next.Generation && x.Extra() == 0 })
			if _, err := r.res("v1", "configmaps", ns).Get(context.Background(), "cm-00", metav1.GetOptions{}); err != nil {
				t.Errorf("what a person put into it: %v", err)
			}
			if u, err := r.res("v1", "namespaces", "").Get(context.Background(), ns, metav1.GetOptions{}); err != nil || u.GetDeletionTimestamp() != nil {
				t.Errorf("the namespace: %v, %v", u, err)
			}
		})
	}
}
