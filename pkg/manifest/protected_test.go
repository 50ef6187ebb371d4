package manifest

import (
	"errors"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

const binding = `apiVersion: rbac.authorization.k8s.io/v1
kind: %KIND%
metadata: {name: grant, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {kind: ServiceAccount, name: shop, namespace: shop}
- %SUBJECT%
`

func binds(kind, subject string) string {
	return strings.NewReplacer("%KIND%", kind, "%SUBJECT%", subject).Replace(binding)
}

// TestObjectsOfTheAgentAreRefused: by name, before they are delivered anywhere.
func TestObjectsOfTheAgentAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ object, says string }{
		"its namespace":          {"{apiVersion: v1, kind: Namespace, metadata: {name: towline-system}}", "m.yaml:1: Namespace towline-system: namespace towline-system belongs to the agent"},
		"its Project":            {"{apiVersion: project.openshift.io/v1, kind: Project, metadata: {name: towline-system}}", "Project towline-system: namespace towline-system belongs to the agent"},
		"its Lease":              {"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: towline-agent, namespace: towline-system}}", "namespace towline-system belongs to the agent"},
		"its Deployment":         {"{apiVersion: apps/v1, kind: Deployment, metadata: {name: towline-agent, namespace: towline-system}}", "belongs to the agent"},
		"anything there":         {"{apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: towline-system}}", "belongs to the agent"},
		"its cluster role":       {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: towline-agent}}", "ClusterRole towline-agent: belongs to the agent"},
		"its grant":              {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: towline-agent}}", "ClusterRoleBinding towline-agent: belongs to the agent"},
		"a grant to it":          {binds("ClusterRoleBinding", "{kind: ServiceAccount, name: towline-agent, namespace: towline-system}"), "ClusterRoleBinding grant: binds the agent's own identity"},
		"a role to it":           {binds("RoleBinding", "{kind: ServiceAccount, name: towline-agent, namespace: towline-system}"), "binds the agent's own identity"},
		"its user":               {binds("ClusterRoleBinding", "{kind: User, name: 'system:serviceaccount:towline-system:towline-agent'}"), "binds the agent's own identity"},
		"its group":              {binds("ClusterRoleBinding", "{kind: Group, name: 'system:serviceaccounts:towline-system'}"), "binds the agent's own identity"},
		"its role to OpenShift":  {"{apiVersion: authorization.openshift.io/v1, kind: ClusterRole, metadata: {name: towline-agent}}", "ClusterRole towline-agent: belongs to the agent"},
		"its grant to OpenShift": {"{apiVersion: authorization.openshift.io/v1, kind: ClusterRoleBinding, metadata: {name: towline-agent}}", "belongs to the agent"},
		"a grant by OpenShift":   {strings.Replace(binds("RoleBinding", "{kind: SystemUser, name: 'system:serviceaccount:towline-system:towline-agent'}"), "rbac.authorization.k8s.io", "authorization.openshift.io", 1), "binds the agent's own identity"},
		"a grant by a name":      {"{apiVersion: authorization.openshift.io/v1, kind: ClusterRoleBinding, metadata: {name: grant}, userNames: ['system:serviceaccount:towline-system:towline-agent']}", "binds the agent's own identity"},
		"a grant to its group":   {"{apiVersion: authorization.openshift.io/v1, kind: ClusterRoleBinding, metadata: {name: grant}, groupNames: ['system:serviceaccounts:towline-system']}", "binds the agent's own identity"},
		"kube-system":            {"{apiVersion: v1, kind: ConfigMap, metadata: {name: towline-agent, namespace: kube-system}}", ""},
		"another role":           {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: towline-agents}}", ""},
		"a Role of the name":     {"{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: towline-agent, namespace: shop}}", ""},
		"another's identity":     {binds("ClusterRoleBinding", "{kind: ServiceAccount, name: towline-agent, namespace: shop}"), ""},
		"everybody":              {binds("ClusterRoleBinding", "{kind: Group, name: 'system:authenticated'}"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSet(map[string][]byte{"m.yaml": []byte(tc.object)}, Options{})
			switch {
			case tc.says == "" && err != nil:
				t.Error(err)
			case tc.says != "" && (!errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
}

// TestResolveIDs: what a cluster's values make of a placeholder is refused like what is written out.
func TestResolveIDs(t *testing.T) {
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}},
		{ID: fleet.ObjectID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "towline-${ROLE}"}},
		{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "${NS}", Name: "a"}}}
	for name, tc := range map[string]struct {
		values map[string]string
		says   string
	}{
		"others":        {map[string]string{"ROLE": "viewer", "NS": "kube-system"}, ""},
		"its role":      {map[string]string{"ROLE": "agent", "NS": "shop"}, "ClusterRole towline-${ROLE}: belongs to the agent"},
		"its namespace": {map[string]string{"ROLE": "viewer", "NS": "towline-system"}, "belongs to the agent"},
		"no value":      {map[string]string{"ROLE": "viewer"}, "no value for ${NS}"},
		"another's":     {map[string]string{"ROLE": "viewer", "NS": "shop"}, "ConfigMap ${NS}/a: is ConfigMap shop/a here, as ConfigMap shop/a is, too"},
	} {
		err := ResolveIDs(entries, tc.values)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tc.says)
		}
	}
}
