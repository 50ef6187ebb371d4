package labtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Admitted is what a webhook is asked about.
type Admitted struct {
	UID       string         `json:"uid"`
	Operation string         `json:"operation"`
	Name      string         `json:"name"`
	DryRun    bool           `json:"dryRun"`
	Object    map[string]any `json:"object"`
	Options   struct {
		FieldManager string `json:"fieldManager"`
	} `json:"options"`
}

// Webhook has the API server ask about every write to a resource in a namespace, for as long as the test runs. The answer is a JSON patch, or why the
// write is denied; both empty: it goes on as it is. It returns when the API server asks.
func Webhook(t *testing.T, config *rest.Config, namespace string, of schema.GroupVersionResource, kind string, answer func(Admitted) (patch, denied string)) {
	t.Helper()
	WebhookDenying(t, http.StatusForbidden, config, namespace, of, kind, answer)
}

// WebhookDenying is Webhook with the code that a denial has.
func WebhookDenying(t *testing.T, code int, config *rest.Config, namespace string, of schema.GroupVersionResource, kind string, answer func(Admitted) (patch, denied string)) {
	t.Helper()
	WebhookSaying(t, config, namespace, of, kind, func(x Admitted) (string, *metav1.Status) {
		patch, denied := answer(x)
		if denied == "" {
			return patch, nil
		}
		return "", &metav1.Status{Message: denied, Code: int32(code)}
	})
}

// WebhookSaying is Webhook with all that a denial says; nil: the write is not denied.
func WebhookSaying(t *testing.T, config *rest.Config, namespace string, of schema.GroupVersionResource, kind string, answer func(Admitted) (patch string, denied *metav1.Status)) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var review struct {
			Request Admitted `json:"request"`
		}
		if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response := map[string]any{"uid": review.Request.UID, "allowed": true}
		patch, denied := "", &metav1.Status{Message: probed, Code: http.StatusForbidden}
		if review.Request.Name != probeName {
			patch, denied = answer(review.Request)
		}
		switch {
		case denied != nil:
			response["allowed"], response["status"] = false, denied
		case patch != "":
			response["patchType"], response["patch"] = "JSONPatch", base64.StdEncoding.EncodeToString([]byte(patch))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
	}))
	t.Cleanup(server.Close)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	hooks := client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"})
	_, err = hooks.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": namespace},
		"webhooks": []any{map[string]any{
			"name": "a.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}},
			"clientConfig": map[string]any{"url": server.URL,
				"caBundle": base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))},
			"rules": []any{map[string]any{"apiGroups": []any{of.Group}, "apiVersions": []any{of.Version}, "resources": []any{of.Resource}, "operations": []any{"*"}}},
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hooks.Delete(context.Background(), namespace, metav1.DeleteOptions{}) })
	probe := &unstructured.Unstructured{}
	probe.SetGroupVersionKind(of.GroupVersion().WithKind(kind))
	probe.SetName(probeName)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		_, err := client.Resource(of).Namespace(namespace).Create(t.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), probed) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the webhook is not asked: %v", err)
		}
	}
}

// What a webhook is asked about until it answers.
const (
	probeName = "probe"
	probed    = "probed"
)
