package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// prod places a module in the clusters that are labelled so.
func prod(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	return m
}

// TestHeirThatComesLate: a cluster that joins while a rollout waits is to get the revision before it, so that one counts there for
// what other modules let go, for as long as the cluster has nothing of the module.
func TestHeirThatComesLate(t *testing.T) {
	for name, tc := range map[string]struct {
		late string
		then func(*world)
		heir string
	}{
		"it waits":                 {"", func(*world) {}, "two"},
		"it is aborted":            {"", func(w *world) { w.act(client.Word{Module: "two", Verb: "abort"}) }, "two"},
		"a newer one takes over":   {"", func(w *world) { w.put(prod(waiting(listing("two", "b", "b3")))) }, "two"},
		"none that counts is left": {"", func(w *world) { w.await("two", w.put(prod(listing("two", "b", "b3"))).GetRevision()) }, ""},
		"it ends":                  {"", func(w *world) { w.act(client.Word{Module: "two", Verb: "skip", Clusters: []string{"early", "c"}}) }, ""},
		"it comes":                 {"", func(w *world) { w.inProd("c", false) }, ""},
		"late ones are ignored":    {"Ignore", nil, ""},
		"late ones wait, too":      {"Include", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			only := func(m *towlinev1.Module) *towlinev1.Module {
				m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"c"}}
				return m
			}
			w := newHeirsOf(t, only(listing("one", "a", "m")))
			w.join("early", failingAt(2), map[string]string{"env": "prod"})
			w.await("two", w.put(prod(listing("two", "b", "m"))).GetRevision())
			m := prod(waiting(listing("two", "b")))
			m.Spec.Rollout.LateJoiners = tc.late
			if name == "it ends" {
				m.Spec.Rollout = nil
			}
			w.put(m)
			w.until("two", 2, func(r *towlinev1.Rollout) bool { return strings.Contains("Waiting Paused", r.GetStatus().GetState()) })
			w.put(only(listing("one", "a")))
			w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
			w.inProd("c", true)
			if tc.then != nil {
				w.awaitHeir("c", "one", "m", "two")
				tc.then(w)
			}
			w.awaitHeir("c", "one", "m", tc.heir)
		})
	}
}

// inProd has a cluster selected by what is placed in prod. Cordoned, it gets nothing new.
func (w *world) inProd(cluster string, cordoned bool) {
	w.t.Helper()
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: cluster, Labels: map[string]string{"env": "prod"}}, Spec: &towlinev1.ClusterSpec{Cordoned: new(cordoned)}}})
	must(w.t, err)
}
