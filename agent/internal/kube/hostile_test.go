package kube

import (
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

// TestAnswerThatIsNotTheObject: what stands between the agent and its API server may answer in its own words under the status 200. That is not the
// Secret with the agent's state, nor is it written, no Lease that is held on, and no namespace of another cluster.
func TestAnswerThatIsNotTheObject(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":            "",
		"null":               "null",
		"empty":              "{}",
		"a proxy's own JSON": `{"error":"upstream away","code":502}`,
		"a list":             `[]`,
		"a page":             "<html><body>Please log in</body></html>",
		"a success":          `{"kind":"Status","apiVersion":"v1","status":"Success"}`,
		"no name":            `{"kind":"Secret","apiVersion":"v1","metadata":{}}`,
		"another one":        `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"b","uid":"u"}}`,
		"half of it":         `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","uid":"u`,
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, body)
			}))
			defer server.Close()
			c, err := New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			ctx, a := t.Context(), metav1.ObjectMeta{Name: "a", Namespace: "n"}
			check := func(what string, err error) {
				t.Helper()
				if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err = c.Namespaces().Get(ctx, "a", metav1.GetOptions{})
			check("namespace", err)
			_, err = c.Secrets("n").Get(ctx, "a", metav1.GetOptions{})
			check("secret", err)
			_, err = c.Secrets("n").Create(ctx, &corev1.Secret{ObjectMeta: a}, metav1.CreateOptions{})
			check("create", err)
			_, err = c.Secrets("n").Update(ctx, &corev1.Secret{ObjectMeta: a}, metav1.UpdateOptions{})
			check("update", err)
			_, err = c.Leases("n").Update(ctx, &coordinationv1.Lease{ObjectMeta: a}, metav1.UpdateOptions{})
			check("lease", err)
		})
	}
}
