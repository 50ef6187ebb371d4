package apply

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// An aggregated API that does not answer yet when the agent starts is not one that is not served: charts would be rendered without what
// they have for it, and that would go. Nothing is told for a while; and what answered once counts on.
func TestServedWhileAnAggregatedAPIIsAway(t *testing.T) {
	fresh := "Stale"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]string{
			"/version": `{"gitVersion": "v1.35.0"}`,
			"/api":     `{"kind": "APIGroupDiscoveryList", "items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [{"responseKind": {"kind": "Pod"}}]}]}]}`,
			"/apis": `{"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1", "freshness": "` + fresh + `"` +
				map[bool]string{true: `, "resources": [{"responseKind": {"kind": "NodeMetrics"}}]`}[fresh == "Current"] + `}]}]}`,
		}[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	has := func(s *Served) bool {
		t.Helper()
		got, _, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(got.APIs, "metrics.k8s.io/v1/NodeMetrics")
	}
	s := NewServed(c)
	if _, _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "discovery of metrics.k8s.io/v1: does not answer yet") {
		t.Errorf("at the start: %v", err)
	}
	fresh = "Current"
	if !has(s) {
		t.Error("it is not told when it answers")
	}
	fresh = "Stale"
	if !has(s) {
		t.Error("what answered once is not served any more")
	}
	for _, made := range []time.Time{time.Now().Add(-holesLast), time.Now().Add(-2 * holesLast)} {
		late := NewServed(c)
		if late.made = made; has(late) {
			t.Error("what never answered is served")
		}
		if fresh = "Current"; !has(late) {
			t.Error("it is not told when it answers at last")
		}
		fresh = "Stale"
	}
}
