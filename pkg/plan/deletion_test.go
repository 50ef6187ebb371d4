package plan

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// object reads Kind.group/name; the name may be left out.
func object(text string) fleet.ObjectID {
	kind, name, _ := strings.Cut(text, "/")
	kind, group, _ := strings.Cut(kind, ".")
	id := fleet.ObjectID{Group: group, Kind: kind, Name: name, Namespace: "ns"}
	if id.Name == "" {
		id.Name = strings.ToLower(kind)
	}
	return id
}

const (
	definition = "CustomResourceDefinition.apiextensions.k8s.io/clusters.db.io"
	registered = "APIService.apiregistration.k8s.io/v1.db.io"
	webhook    = "ValidatingWebhookConfiguration.admissionregistration.k8s.io"
)

// Scenario 26: what others depend on goes last, and a stage begins when all of the one before it is gone, however many looks that takes.
func TestDeleteStages(t *testing.T) {
	for _, tc := range []struct {
		name    string
		objects []string // with @ and the wave, if it is not 0; with ~ in front: stays
		stages  []string // objects of a stage, separated by blanks
	}{
		{"operator and its objects", []string{"Deployment.apps", "Cluster.db.io", "ServiceAccount", "ClusterRoleBinding.rbac.authorization.k8s.io"},
			[]string{"Cluster.db.io", "Deployment.apps", "ClusterRoleBinding.rbac.authorization.k8s.io ServiceAccount"}},
		{"namespace and definition last", []string{"Namespace", definition, "Deployment.apps", "Cluster.db.io"},
			[]string{"Cluster.db.io", "Deployment.apps", definition, "Namespace"}},
		{"what is a namespace by another kind, too", []string{"Project.project.openshift.io", "Cluster.db.io", "Deployment.apps"},
			[]string{"Cluster.db.io", "Deployment.apps", "Project.project.openshift.io"}},
		{"what could refuse the rest first", []string{webhook, "Cluster.db.io", "Deployment.apps", "Service"},
			[]string{webhook, "Cluster.db.io", "Service", "Deployment.apps"}},
		{"webhook of an earlier wave, too", []string{webhook + "@-1", "Deployment.apps"}, []string{webhook, "Deployment.apps"}},
		{"what shows workloads to the outside", []string{"Ingress.networking.k8s.io", "Service", "Deployment.apps", "Secret"},
			[]string{"Ingress.networking.k8s.io Service", "Deployment.apps", "Secret"}},
		{"claims after the pods that use them", []string{"PersistentVolumeClaim", "StatefulSet.apps"},
			[]string{"StatefulSet.apps", "PersistentVolumeClaim"}},
		{"waves backwards", []string{"ConfigMap/a@-1", "ConfigMap/b", "ConfigMap/c@2"}, []string{"ConfigMap/c", "ConfigMap/b", "ConfigMap/a"}},
		{"objects of others' kinds in their wave", []string{"Cluster.db.io@-1", "Deployment.apps"}, []string{"Deployment.apps", "Cluster.db.io"}},
		{"objects of an own kind before every wave", []string{definition, "Cluster.db.io@-1", "Deployment.apps"},
			[]string{"Cluster.db.io", "Deployment.apps", definition}},
		{"an own kind whose definition stays", []string{"~" + definition, "Cluster.db.io@-1", "Deployment.apps"},
			[]string{"Cluster.db.io", "Deployment.apps"}},
		{"own objects in their waves, backwards", []string{definition, "Cluster.db.io/a@-1", "Cluster.db.io/b@1", "Deployment.apps@2"},
			[]string{"Cluster.db.io/b", "Cluster.db.io/a", "Deployment.apps", definition}},
		{"an aggregated API between its objects and what serves it", []string{registered, "Cluster.db.io", "Deployment.apps", "Service"},
			[]string{"Cluster.db.io", registered, "Service", "Deployment.apps"}},
		{"a custom kind with the name of one of Kubernetes", []string{"Deployment.db.io", "Deployment.apps"},
			[]string{"Deployment.db.io", "Deployment.apps"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var going, all []Record
			for _, text := range tc.objects {
				text, stays := strings.CutPrefix(text, "~")
				text, wave, _ := strings.Cut(text, "@")
				r := Record{ID: object(text), Wave: int32(len(wave))}
				if strings.HasPrefix(wave, "-") {
					r.Wave = -1
				}
				if all = append(all, r); !stays {
					going = append(going, r)
				}
			}
			var got []string
			for _, stage := range DeleteStages(going, all) {
				var names []string
				for _, r := range stage {
					for _, text := range tc.objects {
						text = strings.TrimPrefix(text, "~")
						if text, _, _ = strings.Cut(text, "@"); object(text) == r.ID {
							names = append(names, text)
						}
					}
				}
				slices.Sort(names)
				got = append(got, strings.Join(names, " "))
			}
			if !slices.Equal(got, tc.stages) {
				t.Errorf("%q, want %q", got, tc.stages)
			}
		})
	}
}

// TestOrderIsKept: what cannot be seen, or is another module's, holds up what has to come after it, and nothing else.
func TestOrderIsKept(t *testing.T) {
	all := []string{webhook, definition, "Cluster.db.io", "Other.example.com", "Deployment.apps", "ConfigMap", "Namespace"}
	theirs := owned(object("Cluster.db.io/theirs"))
	theirs.Module = other
	for _, tc := range []struct {
		name   string
		change func(*PruneInput)
		goes   []string
	}{
		{"nothing in the way", func(*PruneInput) {}, all},
		{"a kind that cannot be seen", func(in *PruneInput) {
			in.Kind = func(r Record) (KindState, string) {
				if r.ID.Group == "db.io" {
					return KindUnknown, "of a test"
				}
				return KindServed, ""
			}
		}, []string{webhook}},
		{"a last kind that cannot be seen", func(in *PruneInput) {
			in.Kind = func(r Record) (KindState, string) {
				if IsNamespace(r.ID) {
					return KindUnknown, "of a test"
				}
				return KindServed, ""
			}
		}, all[:6]},
		{"another module that goes, too", func(in *PruneInput) {
			in.Dependent = func(groups map[string]bool) (Record, bool) { return theirs, groups["db.io"] && len(groups) == 1 }
		}, []string{webhook, "Cluster.db.io", "Other.example.com"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			in.Tombstone, in.Records = true, nil
			for _, text := range all {
				in.Records = append(in.Records, owned(object(text)))
			}
			tc.change(&in)
			var got []string
			for _, text := range all {
				if slices.ContainsFunc(slices.Concat(Prune(in).Delete...), func(r Record) bool { return r.ID == object(text) }) {
					got = append(got, text)
				}
			}
			if !slices.Equal(got, tc.goes) {
				t.Errorf("%q go, want %q", got, tc.goes)
			}
		})
	}
}
