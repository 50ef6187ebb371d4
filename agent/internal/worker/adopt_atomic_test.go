package worker

import (
	"reflect"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What the API server takes as a whole (a selector, the rules of a role) differs if it says more than the module does: an
// apply would take that away, though every field that the module lists is as it lists it.
func TestAdoptionChangesNoValue(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct{ name, apiVersion, resource, pointer, live, desired string }{
		{"labels of a selector", "v1", "services", "/spec/selector", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NS}
spec: {ports: [{port: 80}], selector: {app: web, version: v2}}
`, "selector: {app: web}"},
		{"an empty selector", "networking.k8s.io/v1", "networkpolicies", "/spec/podSelector", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: $NS}
spec: {policyTypes: [Ingress], podSelector: {matchLabels: {app: db}}}
`, "podSelector: {}"},
		{"rules of a role", "rbac.authorization.k8s.io/v1", "roles", "/rules", `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: $NS}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: [one]}]
`, "rules: [{apiGroups: [\"\"], resources: [secrets], verbs: [get]}]"},
	} {
		live := r.object(tc.live)
		key, _, _ := strings.Cut(tc.desired, ":")
		desired := tc.live[:strings.Index(tc.live, key+":")] + tc.desired
		if strings.Contains(tc.live, "spec: {") {
			desired += "}"
		}
		r.createAs("somebody", tc.apiVersion, tc.resource, r.ns, live)
		name := live["metadata"].(map[string]any)["name"].(string)
		before := r.get(tc.apiVersion, tc.resource, name)

		s := r.bundle(name, nil, desired)
		r.set([]fleet.Sync{s})
		status := r.wait(name, "judged", func(x fleet.SyncStatus) bool { return x.Ready || x.Phase == fleet.PhaseFailed })
		if status.Phase != fleet.PhaseFailed || status.Exceptions[0].Field != tc.pointer || status.Exceptions[0].Reason != "Conflict" {
			t.Errorf("%s: %s %+v, want a conflict at %s", tc.name, status.Phase, status.Exceptions, tc.pointer)
		}
		after := r.get(tc.apiVersion, tc.resource, name)
		if !reflect.DeepEqual(before.Object, after.Object) {
			t.Errorf("%s: it was %v, and is %v", tc.name, before.Object, after.Object)
		}
	}
}
