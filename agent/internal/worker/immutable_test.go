package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// An admission policy that denies an update protects the object: whatever it says, the object is not deleted to be made again.
func TestAdmissionIsNoImmutability(t *testing.T) {
	for reason, said := range map[string]string{"Invalid": "Invalid", "Forbidden": "Forbidden", "RequestEntityTooLarge": "Forbidden"} {
		t.Run(reason, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}
			s := r.bundle("shop", policies, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.get("v1", "configmaps", "a").GetUID()
			r.freezesConfigMaps(reason)
			next := r.bundle("shop", policies, configMap("a", "k: w"))
			r.set([]fleet.Sync{next})
			status := r.wait("shop", "refused", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && (x.Ready || x.Phase == fleet.PhaseFailed)
			})
			if live := r.get("v1", "configmaps", "a"); live == nil || live.GetUID() != uid {
				t.Fatalf("deleted: %v, status %+v", live, status)
			}
			told := slices.ContainsFunc(strings.Split(r.heard.String(), "\n"), func(line string) bool {
				return strings.HasPrefix(line, fmt.Sprintf("{Module:default/shop Generation:%d ", next.Generation)) &&
					strings.Contains(line, "Phase:Applying") && strings.Contains(line, "while the audit lasts")
			})
			if !told {
				t.Error("it was not told before it was a verdict")
			}
			if status.Reason != said || !strings.Contains(status.Message, "cannot be changed while the audit lasts") {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// freezesConfigMaps has the cluster refuse updates of ConfigMaps, not their deletion.
func (r *rig) freezesConfigMaps(reason string) {
	r.t.Helper()
	r.clusterScoped("validatingadmissionpolicies", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen-$NS}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'a'", message: field is immutable; it cannot be changed while the audit lasts, reason: `+reason+`}]
`)
	r.clusterScoped("validatingadmissionpolicybindings", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen-$NS}
spec: {policyName: frozen-$NS, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`)
	r.eventually("the policy refuses", func() bool {
		_, err := r.res("v1", "configmaps", r.ns).Patch(context.Background(), "a", types.MergePatchType, []byte(`{"data":{"x":"y"}}`),
			metav1.PatchOptions{DryRun: []string{"All"}})
		return err != nil && strings.Contains(err.Error(), "audit")
	})
}
