package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// secretData are the values of a live Secret, decoded.
func (r *rig) secretData(name string) map[string]string {
	r.t.Helper()
	u := r.get("v1", "secrets", name)
	if u == nil {
		return nil
	}
	data, _, _ := unstructured.NestedStringMap(u.Object, "data")
	for k, v := range data {
		raw, err := base64.StdEncoding.DecodeString(v)
		if err != nil {
			r.t.Fatal(err)
		}
		data[k] = string(raw)
	}
	return data
}

func secret(name, fields string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: $NS}\n" + fields + "\n"
}

func TestStringDataIsKept(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, secret("web", `stringData: {password: mine, other: "${X}"}`+"\ndata: {password: bG9zZXM=}"))
	s.Values = map[string]string{"X": "from a binding"}
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.secretData("web"); got["password"] != "mine" || got["other"] != "from a binding" {
		t.Errorf("data %q", got)
	}
	r.patch("v1", "secrets", "web", "ana", `{"data":{"password":"dGhlaXJz"}}`)
	r.eventually("the password is back", func() bool { return r.secretData("web")["password"] == "mine" })
	r.patch("v1", "secrets", "web", "ana", `{"data":{"other":null}}`)
	r.eventually("the other is back", func() bool { return r.secretData("web")["other"] == "from a binding" })

	next := r.bundle("shop", nil, secret("web", "stringData: {password: mine}"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.secretData("web"); len(got) != 1 || got["password"] != "mine" {
		t.Errorf("after a revision without other: %q", got)
	}
}

// Of a Secret that was applied with stringData, the server counts nothing in data as ours.
func TestStringDataAppliedByAnOlderAgent(t *testing.T) {
	r := newRig(t)
	r.stop()
	web := fleet.ModuleRef{Project: "default", Name: "shop"}
	apply1 := func(name string) *unstructured.Unstructured {
		u, err := r.res("v1", "secrets", r.ns).Apply(context.Background(), name, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": name, "labels": map[string]any{fleet.HubLabel: r.hub},
				"annotations": map[string]any{fleet.OwnerAnnotation: fleet.OwnerMark(web, "uid-1", fleet.ObjectID{Kind: "Secret", Namespace: r.ns, Name: name})}},
			"stringData": map[string]any{"password": "mine", "dropped": "x", "taken": "y"}}}, metav1.ApplyOptions{FieldManager: fleet.FieldManager})
		if err != nil {
			t.Fatal(err)
		}
		r.patch("v1", "secrets", name, "ana", `{"data":{"password":"dGhlaXJz","taken":"aGVycw=="}}`)
		return u
	}
	recorded := apply1("recorded")
	apply1("found")
	ctx, stop := context.WithCancel(context.Background())
	inventory, err := apply.Open(ctx, r.store, newVault(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- inventory.Run(ctx) }()
	for _, m := range recorded.GetManagedFields() {
		paths, err := inventory.Paths.Parse(m.FieldsV1.GetRawBytes(), nil)
		if err != nil {
			t.Fatal(err)
		}
		inventory.Put(&apply.Record{Paths: paths, Algorithm: 1, Base: apply.Values{Replicas: -1}, Record: plan.Record{
			ID: fleet.ObjectID{Kind: "Secret", Namespace: r.ns, Name: "recorded"}, Version: "v1", Module: web, State: plan.Owned,
			UID: string(recorded.GetUID()), ResourceVersion: apply.ParseVersion(recorded.GetResourceVersion()), Want: fleet.DigestOf(nil), Born: 1}})
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.start()
	s := r.bundle("shop", nil, secret("recorded", "stringData: {password: mine}"), secret("found", "stringData: {password: mine}"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for _, name := range []string{"recorded", "found"} {
		if got := r.secretData(name); len(got) != 2 || got["password"] != "mine" || got["taken"] != "hers" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// tattle is a policy whose message says everything about the Secrets of a namespace that it refuses.
const tattle = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: tattle-$NS}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [secrets]}]}
  validations:
  - expression: "false"
    messageExpression: "'refused: ' + (object == null ? 'nothing' : string(object.data.password)) + ' for ' + (oldObject == null ? 'nothing' : string(oldObject.data.password))"
`

const tattleBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: tattle-$NS}
spec:
  policyName: tattle-$NS
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}
`

// Whatever the API server answers about a Secret, nobody learns a value from a status, an Event or a log.
func TestValuesOfSecretsStayInTheCluster(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	canary := func(n int) string { return fmt.Sprintf("4821%04d77", n) }
	encoded := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(canary(n))) }
	bad := map[string]string{
		"number-in-strings": "stringData: {pin: " + canary(1) + "}",
		"list-in-strings":   "stringData: {pin: [" + canary(2) + "]}",
		"number-in-data":    "data: {pin: " + canary(3) + "}",
		"map-in-data":       "data: {pin: {a: '" + canary(4) + "'}}",
		"no-base64":         "data: {pin: '" + canary(5) + "%'}",
		"no-json":           "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{" + canary(6) + "'}",
		"of-no-type":        "type: kubernetes.io/ssh-auth\nstringData: {pin: '" + canary(7) + "'}",
	}
	var objects []string
	for name, fields := range bad {
		objects = append(objects, secret(name, fields))
	}
	broken := r.bundle("broken", nil, objects...)
	r.set([]fleet.Sync{broken})
	status := r.wait("broken", "failed", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == len(bad) && x.Phase == fleet.PhaseFailed })
	for _, x := range status.Exceptions {
		if x.Reason != "Invalid" {
			t.Errorf("exception %+v", x)
		}
	}

	s := r.bundle("shop", nil, secret("web", "stringData: {password: '"+canary(8)+"'}"), secret("fixed", "immutable: true\nstringData: {password: '"+canary(9)+"'}"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "secrets", "web", "ana", `{"data":{"password":"`+encoded(10)+`"}}`)
	r.eventually("the password is back", func() bool { return r.secretData("web")["password"] == canary(8) })
	next := r.bundle("shop", []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}, secret("web", "stringData: {password: '"+canary(8)+"'}"), secret("fixed", "immutable: true\nstringData: {password: '"+canary(11)+"'}"))
	r.set([]fleet.Sync{next})
	r.ready(next)

	r.clusterScoped("validatingadmissionpolicies", tattle)
	r.clusterScoped("validatingadmissionpolicybindings", tattleBinding)
	deny := func(password string) error {
		_, err := r.res("v1", "secrets", r.ns).Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": "probe"}, "data": map[string]any{"password": password}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	r.eventually("the policy refuses", func() bool { err := deny("eA=="); return err != nil && strings.Contains(err.Error(), "refused") })
	third := r.bundle("shop", nil, secret("web", "stringData: {password: '"+canary(12)+"'}"), secret("fixed", "immutable: true\nstringData: {password: '"+canary(11)+"'}"))
	r.set([]fleet.Sync{third})
	status = r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Generation == third.Generation && x.Phase == fleet.PhaseFailed })
	if !strings.Contains(status.Message, "refused: *** for ***") {
		t.Errorf("message %q", status.Message)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "not removed", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoving && strings.Contains(x.Message, "refused")
	})

	events, err := r.res("v1", "events", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(events)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 12; n++ {
		for where, heard := range map[string]string{"an Event": string(text), "a status or a log": r.heard.String()} {
			if strings.Contains(heard, canary(n)) || strings.Contains(heard, strings.TrimRight(encoded(n), "=")) {
				t.Errorf("value %d is in %s", n, where)
			}
		}
	}
}
