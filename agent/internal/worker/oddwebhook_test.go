package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// TestWebhookThatMakesSomethingElseOfAnObject: where a mutating webhook answers with what is no object, or with one of another name, which the API
// server says in words that name no webhook, whoever reads it is told that it is one, and how to find it.
func TestWebhookThatMakesSomethingElseOfAnObject(t *testing.T) {
	for name, patch := range map[string]string{
		"no object":         `[{"op":"replace","path":"","value":"x"}]`,
		"an empty object":   `[{"op":"replace","path":"","value":{}}]`,
		"another name":      `[{"op":"replace","path":"/metadata/name","value":"b"}]`,
		"another namespace": `[{"op":"replace","path":"/metadata/namespace","value":"other"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.webhook(func(x labtest.Admitted) (string, string) {
				if x.Operation == "DELETE" || x.Options.FieldManager != fleet.FieldManager {
					return "", ""
				}
				return patch, ""
			})
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			status := r.wait("shop", "what is wrong", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "ConfigMap "+r.ns+"/a: ") })
			if !strings.Contains(status.Message, "a mutating webhook of the cluster") || !strings.Contains(status.Message, "kubectl get mutatingwebhookconfigurations") {
				t.Errorf("%s: %s", status.Reason, status.Message)
			}
		})
	}
}
