package plan

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestRecreate(t *testing.T) {
	anything := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}
	naming := func(kind string) []fleet.Policy {
		return []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{kind}}, Recreate: fleet.RecreateIfImmutable}}
	}
	job := fleet.ObjectID{Group: "batch", Kind: "Job", Namespace: "ns", Name: "a"}
	set := fleet.ObjectID{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: "a"}
	volume := fleet.ObjectID{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "a"}
	crd := fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "a.x.io"}
	custom := fleet.ObjectID{Group: "db.example.com", Kind: "Database", Namespace: "ns", Name: "a"}
	for _, tc := range []struct {
		name     string
		id       fleet.ObjectID
		policies []fleet.Policy
		change   func(*Recreation)
		refusal  string // part of it; empty: none
	}{
		{"allowed", job, anything, nil, ""},
		{"by default", job, nil, nil, "set the policy recreate: IfImmutable"},
		{"by default, a kind with data", volume, nil, nil, "{match: {kinds: [PersistentVolumeClaim]}, recreate: IfImmutable}"},
		{"a claim", volume, anything, nil, "names the kind lets it be made again: {match: {kinds: [PersistentVolumeClaim]}, recreate: IfImmutable}"},
		{"a claim, named", volume, naming("PersistentVolumeClaim"), nil, ""},
		{"a claim, another kind named", volume, append(naming("Job"), anything...), nil, "PersistentVolumeClaim"},
		{"a claim, named for something else", volume, append([]fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}}, Prune: fleet.PruneOnUpdate}}, anything...), nil, "PersistentVolumeClaim"},
		{"a claim, named elsewhere", volume, append([]fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}, Namespaces: []string{"other"}}, Recreate: fleet.RecreateIfImmutable}}, anything...), nil, "PersistentVolumeClaim"},
		{"a claim, named unless it has a label", volume, append([]fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}, Labels: without("keep")}, Recreate: fleet.RecreateIfImmutable}}, anything...), nil, "PersistentVolumeClaim"},
		{"a volume", fleet.ObjectID{Kind: "PersistentVolume", Name: "a"}, anything, nil, "PersistentVolume"},
		{"a namespace", fleet.ObjectID{Kind: "Namespace", Name: "a"}, anything, nil, "Namespace"},
		{"a definition", crd, anything, nil, "CustomResourceDefinition"},
		{"a definition, named", crd, naming("CustomResourceDefinition"), nil, ""},
		{"a definition, named, in use", crd, naming("CustomResourceDefinition"), func(r *Recreation) { r.Inside = []string{"ns/a"} }, "would go with it: ns/a"},
		{"a custom kind", custom, anything, nil, "names the kind lets it be made again: {match: {kinds: [Database]}, recreate: IfImmutable}"},
		{"a custom kind, by default", custom, nil, nil, "{match: {kinds: [Database]}, recreate: IfImmutable}"},
		{"a custom kind, named", custom, naming("Database"), nil, ""},
		{"a node, with its pods", fleet.ObjectID{Kind: "Node", Name: "a"}, anything, nil, "{match: {kinds: [Node]}, recreate: IfImmutable}"},
		{"a node, named", fleet.ObjectID{Kind: "Node", Name: "a"}, naming("Node"), nil, ""},
		{"what the cluster lives by, named", fleet.ObjectID{Kind: "Service", Namespace: "default", Name: "kubernetes"}, naming("Service"), nil, "the cluster lives by it"},
		{"of somebody else", job, anything, func(r *Recreation) { r.Ours = false }, "delete the object"},
		{"controlled", job, anything, func(r *Recreation) { r.Controller = "CronJob a" }, "controlled by CronJob a"},
		{"takes claims along", set, anything, func(r *Recreation) { r.ClaimsGo = true }, "its claims would be deleted with it"},
		{"takes claims along, named", set, naming("StatefulSet"), func(r *Recreation) { r.ClaimsGo = true }, ""},
	} {
		r := Recreation{Policies: tc.policies, Policy: fleet.Resolve(tc.policies, tc.id, nil), Ours: true}
		if tc.change != nil {
			tc.change(&r)
		}
		if got := Recreate(tc.id, r); (got == "") != (tc.refusal == "") || !strings.Contains(got, tc.refusal) {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}
