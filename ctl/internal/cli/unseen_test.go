package cli

import (
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
)

// TestObjectThatCannotBeSeen: what was said last of an object is never shown as if it were of now.
func TestObjectThatCannotBeSeen(t *testing.T) {
	web := &v1.Object{Cluster: "edge-112", Project: "default", Module: "shop", Revision: 41, Object: &v1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"},
		Sync: "Unknown", Health: "Unknown", Drift: "Unknown", Since: ago(14 * time.Minute), LastHeard: ago(14 * time.Minute),
		WasSync: "OutOfSync", WasHealth: "Degraded", WasDrift: "Drifted", Message: "image not found", Field: "/spec/replicas", Want: "3", Live: "5"}
	fine := &v1.Object{Cluster: "edge-112", Project: "default", Module: "shop", Revision: 41, Object: &v1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "shop", Name: "web"},
		Sync: "Unknown", Health: "Unknown", Drift: "Unknown", Since: ago(14 * time.Minute), LastHeard: ago(14 * time.Minute), WasSync: "Synced", WasHealth: "Healthy", WasDrift: "InSync"}
	undated := &v1.Object{Cluster: "prod-eu-07", Project: "default", Module: "shop", Revision: 42, Object: &v1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"},
		Sync: "Synced", Health: "Suspended", Drift: "InSync"}
	hub := &fakeHub{objects: []*v1.Object{web, fine, undated}, explained: &v1.ExplainObjectResponse{Object: web}}
	same(t, hub.run(t, run{}, "get", "objects").out, `
CLUSTER     MODULE  OBJECT               REV  SYNC     HEALTH                  DRIFT    SINCE  WHAT
edge-112    shop    Deployment shop/web  r41  Unknown  Unknown (was Degraded)  Unknown  14m    as last heard at 03:00:15: image not found
edge-112    shop    Service shop/web     r41  Unknown  Unknown (was Healthy)   Unknown  14m    -
prod-eu-07  shop    Deployment shop/web  r42  Synced   Suspended               InSync   -      -
`)
	same(t, hub.run(t, run{}, "explain", "object", "Deployment/shop/web", "--cluster", "edge-112").out, `
Deployment shop/web in cluster edge-112 is Unknown, Unknown (was Degraded), Unknown since 03:00:15.
As last heard at 03:00:15: image not found.
Field /spec/replicas: the module says 3, there was 5.
Module shop lists it, in r41.

POLICY  VALUE  DECIDED BY
`)
}
