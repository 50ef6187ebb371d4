package hub_test

import (
	"fmt"
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// An agent that reports on modules which nobody gave it is kept from filling the store: a few are shown as strays, the
// rest is counted, and what it should report on is taken as ever.
func TestReportsOfWhatAClusterWasNotGivenAreBounded(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	text := strings.Repeat("x", 250)
	for n := range 50 {
		s := &agentv1.Status{}
		for i := range 4 {
			s.Syncs = append(s.Syncs, &agentv1.SyncStatus{Module: fmt.Sprintf("default/x%d", 4*n+i), Generation: 1, Bundle: make([]byte, 32),
				Phase: string(fleet.PhaseStray), States: []byte{0}, Message: text})
		}
		must(t, w.agents["a"].SendStatus(s))
	}
	st, err := w.Clusters.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{Name: "a"})
	must(t, err)
	for {
		m, err := st.Recv()
		must(t, err)
		s := m.GetCluster().GetStatus()
		if n := len(s.GetStrays()); n > 20 {
			t.Fatalf("%d strays are kept", n)
		}
		if c := s.GetConditions(); len(s.GetStrays()) == 20 && len(c) == 1 && c[0].GetFacts().GetCount() == 180 {
			if c[0].GetType() != "ReportsAccepted" || c[0].GetStatus() != "False" || c[0].GetReason() != "NotDesired" || !strings.HasPrefix(c[0].GetFacts().GetNames()[0], "default/x") {
				t.Errorf("condition: %v", c[0])
			}
			break
		}
	}
	if ro := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision()); ro.GetStatus().GetSucceeded() != 1 {
		t.Errorf("its own module: %v", ro.GetStatus())
	}
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	w.connect("a", nil)
	w.awaitConditions("a") // the next session tells anew
}
