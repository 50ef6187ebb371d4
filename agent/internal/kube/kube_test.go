package kube

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The paths, bodies and answers are those that API servers have: an object says its kind on the way there, and what the
// server says when it refuses is an error that can be told by its reason.
func TestClient(t *testing.T) {
	var asked string
	var sent map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked, sent = r.Method+" "+r.URL.String(), nil
		_ = json.Unmarshal(body, &sent)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = io.WriteString(w, `{"major":"1","minor":"34","gitVersion":"v1.34.1"}`)
		case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/a":
			_, _ = io.WriteString(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a","uid":"u"}}`)
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case r.Method == http.MethodDelete:
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		default:
			_, _ = w.Write(body)
		}
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, byUID := t.Context(), metav1.NewPreconditionDeleteOptions("u")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"k": []byte("v")}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}
	for _, tc := range []struct {
		do         func() error
		want, kind string
	}{
		{func() error { _, err := c.Secrets("n").Create(ctx, secret, metav1.CreateOptions{}); return err },
			"POST /api/v1/namespaces/n/secrets", "v1/Secret"},
		{func() error {
			got, err := c.Secrets("n").Update(ctx, secret, metav1.UpdateOptions{FieldManager: "m"})
			if err == nil && string(got.Data["k"]) != "v" {
				t.Errorf("answer %v", got)
			}
			return err
		}, "PUT /api/v1/namespaces/n/secrets/s?fieldManager=m", "v1/Secret"},
		{func() error { return c.Secrets("n").Delete(ctx, "s", *byUID) },
			"DELETE /api/v1/namespaces/n/secrets/s", "v1/DeleteOptions"},
		{func() error { _, err := c.Leases("n").Update(ctx, lease, metav1.UpdateOptions{}); return err },
			"PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l", "coordination.k8s.io/v1/Lease"},
		{func() error {
			if _, err := c.Leases("n").Get(ctx, "l", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("error %v", err)
			}
			return nil
		}, "GET /apis/coordination.k8s.io/v1/namespaces/n/leases/l", ""},
		{func() error {
			got, err := c.Namespaces().Get(ctx, "a", metav1.GetOptions{})
			if err == nil && got.UID != "u" {
				t.Errorf("answer %v", got)
			}
			return err
		}, "GET /api/v1/namespaces/a", ""},
		{func() error {
			v, err := c.Version(ctx)
			if v != "v1.34.1" {
				t.Errorf("version %q", v)
			}
			return err
		}, "GET /version", ""},
	} {
		if err := tc.do(); err != nil {
			t.Errorf("%s: %v", tc.want, err)
		}
		kind := ""
		if sent != nil {
			kind, _ = sent["kind"].(string)
			version, _ := sent["apiVersion"].(string)
			kind = version + "/" + kind
		}
		if asked != tc.want || kind != tc.kind {
			t.Errorf("asked %q with a %q, want %q with a %q", asked, kind, tc.want, tc.kind)
		}
	}
}
