package worker

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// projects defines OpenShift's kind on an API server that does not have it. There a Project is the Namespace of its name, and who
// deletes the one deletes the other; here nothing goes with it, so that the tests look at the Project alone.
const projects = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: projects.project.openshift.io, annotations: {api-approved.kubernetes.io: test}}\n" +
	"spec: {group: project.openshift.io, scope: Cluster, names: {kind: Project, plural: projects}, versions: [{name: v1, served: true, storage: true, " +
	"schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}\n"

// With a Project of OpenShift goes the Namespace of its name, and all that is in it: it is deleted by the rules of a Namespace.
func TestProjectIsTheNamespaceOfItsName(t *testing.T) {
	r := newRig(t)
	r.clusterScoped("customresourcedefinitions", projects)
	r.eventually("the kind is served", func() bool {
		_, err := r.res("project.openshift.io/v1", "projects", "").List(context.Background(), metav1.ListOptions{})
		return err == nil
	})
	there := func(name string) bool {
		u, err := r.res("project.openshift.io/v1", "projects", "").Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && u.GetDeletionTimestamp() == nil
	}
	project := func(name string) string {
		return "apiVersion: project.openshift.io/v1\nkind: Project\nmetadata: {name: " + name + "}\nstatus: {phase: Active}\n"
	}
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "theirs", "namespace": r.ns}})
	own := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n"
	other := r.bundle("other", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-other}\n")
	s := r.bundle("shop", nil, configMap("b", "k: v"), project("$NS"), own, project("$NS-own"), project("$NS-other"), project("$NS-nothing"))
	r.set([]fleet.Sync{s, other})
	r.applied(s)
	r.applied(other)

	next := r.bundle("shop", nil, configMap("b", "k: v"), own)
	r.set([]fleet.Sync{next, other})
	x := r.wait("shop", "what is empty is gone, and why the others stay is said", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && !there(r.ns+"-nothing") && len(x.Extras) <= 3 &&
			!slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool { return e.Reason != plan.ReasonNotEmpty })
	})
	if !there(r.ns) || !there(r.ns+"-own") || !there(r.ns+"-other") {
		t.Fatalf("the namespace of an object that stays %t, one that the module lists %t, one of another module %t; %+v", there(r.ns), there(r.ns+"-own"), there(r.ns+"-other"), x.Extras)
	}

	r.set([]fleet.Sync{other}, r.tombstone("shop", fleet.DeleteDelete))
	x = r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !there(r.ns) || !there(r.ns+"-other") || there(r.ns+"-own") || !strings.Contains(x.Message, "ConfigMap theirs") {
		t.Errorf("with what somebody else has in it %t, with another module's %t, the module's own %t; %+v", there(r.ns), there(r.ns+"-other"), there(r.ns+"-own"), x)
	}
}
