package hub_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestLastModuleWaitsForTheSourceOfTheNext: one module takes the place of another, and its source is slow. The old one leaves the
// cluster without a question when the new one is known to come, and by a person's word if it does not.
func TestLastModuleWaitsForTheSourceOfTheNext(t *testing.T) {
	for name, comes := range map[string]bool{"it comes": true, "it fails": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.join("b", nil, nil)
			answer := make(chan struct{})
			source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				<-answer
				if !comes {
					http.Error(rw, "no", http.StatusNotFound)
					return
				}
				_, _ = rw.Write([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\n"))
			}))
			t.Cleanup(source.Close)
			w.await("old", w.put(listing("old", "o")).GetRevision())
			next := listing("next")
			next.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: source.URL + "/all.yaml"}}
			next.Spec.Placement = &towlinev1.Placement{Clusters: []string{"b"}}
			w.put(next)
			old := listing("old", "o")
			old.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a"}}
			w.put(old)
			w.until("old", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "AwaitingSource" })
			if w.held("b", "old").Revision == 0 {
				t.Error("it left before anybody knew whether something else comes")
			}
			close(answer)
			if comes {
				w.await("next", 1)
				w.await("old", 2)
				w.eventually(func() bool { return w.held("b", "old").Revision == 0 && w.held("b", "next").Revision == 1 })
				return
			}
			w.until("old", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Confirm" })
			if w.held("b", "old").Revision == 0 {
				t.Error("it left though nothing else comes")
			}
		})
	}
}
