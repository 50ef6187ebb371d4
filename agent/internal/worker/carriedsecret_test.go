package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// carrier is a ConfigMap with a Secret as text, beside what is none of it.
const carrier = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: carrier, namespace: $NS}\ndata:\n  open: open-text\n" +
	`  secret.json: '{"apiVersion":"v1","kind":"Secret","metadata":{"name":"db"},"stringData":{"password":"canary-carried"}}'`

// blabbing is a policy whose message says all of a ConfigMap that it does not let go.
const blabbing = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: tattle-$NS}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [configmaps]}]}
  validations:
  - expression: "false"
    messageExpression: "'refused: ' + string(oldObject.data['open']) + string(oldObject.data['secret.json'])"
`

// TestRefusedDeleteDoesNotTellACarriedSecret: what the API server says of what carries a Secret is told without its values, also of one that is
// deleted.
func TestRefusedDeleteDoesNotTellACarriedSecret(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	s := r.bundle("shop", nil, carrier, configMap("other", "a: b"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.clusterScoped("validatingadmissionpolicies", blabbing)
	r.clusterScoped("validatingadmissionpolicybindings", tattleBinding)
	r.eventually("the policy refuses", func() bool {
		err := r.res("v1", "configmaps", r.ns).Delete(context.Background(), "carrier", v1.DeleteOptions{DryRun: []string{v1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	next := r.bundle("shop", nil, configMap("other", "a: b"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && strings.Contains(r.heard.String(), "refused: open-text")
	})
	r.stop()
	if strings.Contains(r.heard.String(), "canary-carried") {
		t.Error("a status or a log line has the value")
	}
}

// TestRefusedRescueDoesNotTellACarriedSecret: an owner is dropped whose object is to stay, and the API server repeats the object as it refuses to have the
// owner taken from it.
func TestRefusedRescueDoesNotTellACarriedSecret(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	const carries = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: carrier, namespace: $NS}\ndata: {open: open-text, x: '{\"data\":{\"a\":\"canary-carried\"},\"kind\":\"Secret\"}'}"
	s := r.bundle("shop", nil, carries, configMap("owner", "a: b"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.ownedBy("configmaps", "carrier", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	r.clusterScoped("validatingadmissionpolicies", strings.NewReplacer("DELETE", "UPDATE", "secret.json", "x").Replace(blabbing))
	r.clusterScoped("validatingadmissionpolicybindings", tattleBinding)
	r.eventually("the policy refuses", func() bool {
		_, err := r.res("v1", "configmaps", r.ns).Patch(context.Background(), "carrier", types.MergePatchType, []byte(`{"data":{"open":"b"}}`), v1.PatchOptions{DryRun: []string{v1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	next := r.bundle("shop", nil, carries)
	r.set([]fleet.Sync{next})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool {
		told, _ := json.Marshal(x)
		return x.Generation == next.Generation && strings.Contains(string(told), "refused: open-text")
	})
	r.stop()
	if strings.Contains(r.heard.String(), "canary-carried") {
		t.Error("a status or a log line has the value")
	}
}

// carryingRig has an object of the module shop into which somebody else has put a Secret as text, and hears what is told and logged.
func carryingRig(t *testing.T) *rig {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	s := r.bundle("shop", nil, configMap("carrier", "open: open-text"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "carrier", "ana", `{"data":{"secret.json":"{\"kind\":\"Secret\",\"metadata\":{\"name\":\"db\"},\"stringData\":{\"password\":\"canary-carried\"}}"}}`)
	return r
}

// wantRefusalWithoutValue changes what the module lists of the object, and wants that the refusal is told with these words, and without the value.
func (r *rig) wantRefusalWithoutValue(words string) {
	r.t.Helper()
	next := r.bundle("shop", nil, configMap("carrier", "open: other-text"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Exceptions) == 1 && strings.Contains(x.Exceptions[0].Message, words)
	})
	r.stop()
	if strings.Contains(r.heard.String(), "canary-carried") {
		r.t.Error("a status or a log line has the value")
	}
}

// TestRefusedApplyDoesNotTellWhatOnlyTheLiveObjectCarries: somebody else has put a Secret into an object of the module, which lists none, and the API
// server repeats it as it refuses what the module applies.
func TestRefusedApplyDoesNotTellWhatOnlyTheLiveObjectCarries(t *testing.T) {
	r := carryingRig(t)
	refusing := strings.Replace(blabbing, "DELETE", "UPDATE", 1)
	r.clusterScoped("validatingadmissionpolicies", refusing)
	r.clusterScoped("validatingadmissionpolicybindings", tattleBinding)
	r.eventually("the policy refuses", func() bool {
		_, err := r.res("v1", "configmaps", r.ns).Patch(context.Background(), "carrier", types.MergePatchType, []byte(`{"data":{"open":"b"}}`), v1.PatchOptions{DryRun: []string{v1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	r.wantRefusalWithoutValue("refused: open-text")
}

// TestBusyWebhookDoesNotTellWhatTheLiveObjectCarries: also where it denies as if the server had failed.
func TestBusyWebhookDoesNotTellWhatTheLiveObjectCarries(t *testing.T) {
	r := carryingRig(t)
	r.webhookDenying(http.StatusInternalServerError, func(x labtest.Admitted) (string, string) {
		if x.Name == "carrier" && x.Operation == "UPDATE" {
			return "", "cannot judge open-text of canary-carried"
		}
		return "", ""
	})
	r.wantRefusalWithoutValue("cannot judge open-text")
}

// TestBindingOfACarriedSecretIsNotShown: a value that stands in a Secret in another object is one of a Secret; what stands beside it is not.
func TestBindingOfACarriedSecretIsNotShown(t *testing.T) {
	r := newRig(t)
	r.loud = true
	r.stop()
	r.start()
	r.eventually("the cluster was searched", func() bool { return r.m.searching() == "" })
	r.create("v1", "configmaps", r.ns, r.object(carrier))
	r.define("databases", "Database", "v1")
	obj := r.custom("v1", "Database", r.ns, "db")
	obj["spec"] = map[string]any{"template": map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "x"}, "stringData": map[string]any{"password": "canary-below"}}}
	r.eventually("the kind is served", func() bool { return r.lists("v1", "databases") })
	r.create(r.group()+"/v1", "databases", r.ns, obj)
	late := []fleet.LateBinding{{Name: "TEXT", Object: r.fieldOf("ConfigMap", "carrier", "data.secret.json")}, {Name: "OPEN", Object: r.fieldOf("ConfigMap", "carrier", "data.open")},
		{Name: "PW", Object: &fleet.ObjectField{Group: r.group(), Version: "v1", Kind: "Database", Namespace: r.ns, Name: "db", Path: "spec.template.stringData.password"}}}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `pw: "${PW}", text: "${TEXT}"`), configMap("shows", `open: "${OPEN}"`)), late...)
	p, err := r.m.Preview(context.Background(), s, r.store)
	r.set([]fleet.Sync{s})
	r.ready(s)
	drifting := r.binding(r.bundle("shop", nil, configMap("uses", `pw: "${PW}!", text: "${TEXT}!"`), configMap("shows", `open: "${OPEN}!"`)), late...)
	q, errNext := r.m.Preview(context.Background(), drifting, r.store)
	told, _ := json.Marshal([]any{p, q})
	if err != nil || errNext != nil || !strings.Contains(string(told), "open-text!") || strings.Contains(string(told), "canary") {
		t.Errorf("%v, %v: previews %s", err, errNext, told)
	}
	r.holdCluster(true)
	r.patch("v1", "configmaps", "uses", "ana", `{"data":{"pw":"other"}}`)
	x := r.wait("shop", "drift is told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Field != "" })
	if x.Exceptions[0].Want != fleet.Masked {
		t.Errorf("want %q", x.Exceptions[0].Want)
	}
	r.stop()
	if strings.Contains(r.heard.String(), "canary-below") || strings.Contains(r.heard.String(), "canary-carried") {
		t.Error("a status or a log line has a value")
	}
}

// TestNameMadeOfASecretIsNotShown: what a binding reads may have a name that is made of a secret; why it cannot be read does not tell it.
func TestNameMadeOfASecretIsNotShown(t *testing.T) {
	r := newRig(t)
	r.loud = true
	r.stop()
	r.start()
	const canary = "canary-tenant-77"
	r.sends(map[string]map[string]string{"db": {"tenant": canary}})
	late := []fleet.LateBinding{{Name: "TENANT", Secret: &fleet.SecretKey{Name: "db", Key: "tenant"}}, {Name: "HOST", Object: r.fieldOf("ConfigMap", "of-${TENANT}", "data.host")}}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), late...)
	r.eventually("the cluster was searched", func() bool { return r.m.searching() == "" })
	p, err := r.m.Preview(context.Background(), s, r.store)
	told, _ := json.Marshal(p)
	if err != nil || strings.Contains(string(told), canary) || !strings.Contains(string(told), "of-*** does not exist") {
		t.Errorf("%v: preview %s", err, told)
	}
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "it waits", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == apply.ReasonBinding
	})
	if !strings.Contains(x.Exceptions[0].Message, "of-*** does not exist") {
		t.Errorf("%+v", x)
	}
	r.source("ConfigMap", "of-"+canary, "data: {host: x}")
	r.ready(s)
	r.delete("v1", "configmaps", "of-"+canary)
	r.wait("shop", "its source is gone", func(x fleet.SyncStatus) bool { return x.Reason == reasonSourceGone })
	r.stop()
	if strings.Contains(r.heard.String(), canary) {
		t.Error("a status or a log line has the value")
	}
}
