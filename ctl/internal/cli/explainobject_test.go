package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
)

func explained() *v1.ExplainObjectResponse {
	return &v1.ExplainObjectResponse{Object: &v1.Object{Cluster: "prod-eu-11", Project: "default", Module: "shop", Revision: 42, Object: &v1.ObjectReference{ApiVersion: "apps/v1",
		Kind: "Deployment", Namespace: "shop", Name: "web"}, Sync: "OutOfSync", Health: "Healthy", Drift: "Drifted", Message: "somebody changed /spec/replicas", Field: "/spec/replicas",
		Want: "3", Live: "5", ChangedBy: "kubectl-edit", Seen: 2}, Revised: timestamppb.New(now), ChangedBy: "ci-shop", ChangeReason: "shop 1.5.0 (PR 812)", Rollout: "shop/57",
		Policies: []*v1.PolicyDecision{{Field: "prune", Value: "OnUpdate"}, {Field: "drift", Value: "Report", Entry: 2}, {Field: "ignoreFields"}}}
}

func TestExplainObject(t *testing.T) {
	hub := &fakeHub{explained: explained()}
	same(t, hub.run(t, run{}, "explain", "object", "Deployment/shop/web", "--cluster", "prod-eu-11").out, `
Deployment shop/web in cluster prod-eu-11 is OutOfSync, Healthy, Drifted.
Somebody changed /spec/replicas.
Field /spec/replicas: the module says 3, there is 5, changed by kubectl-edit, 2 times until now.
Module shop lists it, in r42 since 03:14:15, put by ci-shop: "shop 1.5.0 (PR 812)"; brought by rollout shop/57.

POLICY        VALUE     DECIDED BY
prune         OnUpdate  default
drift         Report    spec.policies[1]
ignoreFields  -         default
`)
	if got := asked[*v1.ExplainObjectRequest](hub); got.GetCluster() != "prod-eu-11" || got.GetObject().GetKind() != "Deployment" || got.GetObject().GetNamespace() != "shop" || got.GetObject().GetName() != "web" {
		t.Errorf("asked for %v", got)
	}
	if got := hub.run(t, run{}, "explain", "object/Node/n1", "--cluster", "c", "-o", "json"); got.code != 0 || !strings.Contains(got.out, `"changeReason": "shop 1.5.0 (PR 812)"`) {
		t.Errorf("as JSON: exit %d, %s%s", got.code, got.out, got.err)
	}
	for _, wrong := range [][]string{{"explain", "object", "web", "--cluster", "c"}, {"explain", "object", "a//b", "--cluster", "c"}, {"explain", "object", "Deployment/shop/web"},
		{"explain", "module", "shop", "--cluster", "c"}} {
		if got := hub.run(t, run{}, wrong...); got.code != exitUsage {
			t.Errorf("%q: exit %d, %s", wrong, got.code, got.err)
		}
	}
}

func TestExplainWatchedObject(t *testing.T) {
	x := &v1.ExplainObjectResponse{Object: &v1.Object{Cluster: "prod-eu-11", Project: "default", Module: "shop", Revision: 42, Watched: true, Object: &v1.ObjectReference{ApiVersion: "example.com/v1",
		Kind: "Database", Namespace: "shop", Name: "db"}, Sync: "OutOfSync", Health: "Missing", Drift: "InSync", Reason: "Missing", Message: "does not exist"}}
	hub := &fakeHub{explained: x}
	same(t, hub.run(t, run{}, "explain", "object", "Database/shop/db", "--cluster", "prod-eu-11").out, `
Database shop/db in cluster prod-eu-11 is OutOfSync, Missing.
Does not exist.
Module shop only watches it, in r42 (spec.watch): it is somebody else's, and its health counts for the module.
`)
	a := &app{}
	there := &v1.Object{Watched: true, Sync: "Synced", Health: "Healthy", Drift: "InSync", Object: x.GetObject().GetObject()}
	if got := a.objectExplained(&v1.ExplainObjectResponse{Object: there}); !strings.Contains(got, " is Watched, Healthy") || strings.Contains(got, "InSync") {
		t.Error(got)
	}
	if got := syncCell(there); got.Text != "Watched" {
		t.Errorf("a list says %q", got.Text)
	}
	if got := a.objectBranches([]*v1.Object{there}, true); len(got) != 1 || !strings.Contains(got[0].text, "watched only") {
		t.Errorf("a tree says %+v", got)
	}
}
