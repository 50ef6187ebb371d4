package hub_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// An object tells which module has it, what brought it, and which entry of the policies decides each field.
func TestExplainObject(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	m := module("shop", map[string]string{"a.yaml": `{apiVersion: v1, kind: ConfigMap, metadata: {name: tuned, namespace: default, labels: {tier: web}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: plain, namespace: default}}`})
	m.Spec.Policies = []*towlinev1.Policy{
		{Match: &towlinev1.PolicyMatch{LabelSelector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"tier": "web"}}}, Drift: "Report"},
		{Match: &towlinev1.PolicyMatch{Kinds: []string{"ConfigMap"}}, Drift: "Ignore", Prune: "Never"}}
	put, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, Reason: "shop 1.5.0"})
	must(t, err)
	w.await("shop", put.GetRevision())
	explain := func(kind, namespace, name, cluster string) (*towlinev1.ExplainObjectResponse, error) {
		return w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: cluster, Object: &towlinev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}})
	}
	for name, want := range map[string][]string{"tuned": {"prune Never 2", "drift Report 1"}, "plain": {"prune Never 2", "drift Ignore 2"}} {
		got, err := explain("ConfigMap", "default", name, "a")
		must(t, err)
		if o := got.GetObject(); o.GetModule() != "shop" || o.GetRevision() != 1 || got.GetChangedBy() != "admin" && got.GetChangedBy() == "" || got.GetChangeReason() != "shop 1.5.0" ||
			got.GetRevised() == nil || got.GetRollout() != "shop/1" {
			t.Errorf("%s: %v", name, got)
		}
		var decided []string
		for _, p := range got.GetPolicies() {
			if p.GetEntry() > 0 {
				decided = append(decided, fmt.Sprintf("%s %s %d", p.GetField(), p.GetValue(), p.GetEntry()))
			}
		}
		if !slices.Equal(decided, want) || len(got.GetPolicies()) < 10 {
			t.Errorf("%s: decided by %q, want %q", name, decided, want)
		}
	}
	for what, c := range map[string]struct {
		kind, namespace, name, cluster string
		code                           codes.Code
	}{
		"of nobody":         {"ConfigMap", "default", "kube-root-ca.crt", "a", codes.NotFound},
		"without namespace": {"ConfigMap", "", "tuned", "a", codes.NotFound},
		"no name":           {"ConfigMap", "default", "", "a", codes.InvalidArgument},
		"no cluster":        {"ConfigMap", "default", "tuned", "", codes.InvalidArgument},
		"another cluster":   {"ConfigMap", "default", "tuned", "b", codes.NotFound},
	} {
		if _, err := explain(c.kind, c.namespace, c.name, c.cluster); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
}
