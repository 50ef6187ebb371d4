package watch

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// What answers a list with something else under the status 200, as a proxy before the API server may, has not said that there is nothing.
func TestAnswerThatIsNoListIsNoEmptyOne(t *testing.T) {
	for answer, empty := range map[string]bool{
		`{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"7"},"items":[]}`:   true,
		`{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"7"},"items":null}`: true,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":200}`:                     false,
		`{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"a","resourceVersion":"7"}}`:       false,
		`{"error":"try again"}`: false,
		`null`:                  false,
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer))
		}))
		defer web.Close()
		client, err := dynamic.NewForConfig(&rest.Config{Host: web.URL})
		if err != nil {
			t.Fatal(err)
		}
		lw := source("Widget", client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}), nil, func(*metav1.ListOptions) {}, nil)
		list, err := lw.ListWithContextFunc(t.Context(), metav1.ListOptions{})
		if empty != (err == nil) || err != nil && strings.Contains(answer, "Status") && !strings.Contains(err.Error(), "list of Widget") {
			t.Errorf("%s: %v, %v", answer, list, err)
		}
	}
}
