package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// What Istio puts into every namespace keeps none of them; an object of its name that somebody made does.
func TestRootCertificateOfIstioKeepsNoNamespace(t *testing.T) {
	for _, by := range []string{"istio", "somebody"} {
		t.Run(by, func(t *testing.T) {
			r := newRig(t)
			name := r.ns + "-own"
			s := r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n")
			r.set([]fleet.Sync{s})
			r.ready(s)
			meta := map[string]any{"name": "istio-ca-root-cert", "namespace": name}
			if by == "istio" {
				meta["labels"] = map[string]any{"istio.io/config": "true"}
			}
			r.create("v1", "configmaps", name, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if kept := r.namespaces(name); kept != (by == "somebody") {
				t.Errorf("the namespace is there: %t; %s", kept, x.Message)
			}
			_ = r.res("v1", "namespaces", "").Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
}
