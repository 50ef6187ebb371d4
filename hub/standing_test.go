package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// A module that was rolled back to an older revision than the last one that succeeded stands at that: it is what people are
// shown, what its clusters are counted by, and where the next rollout comes from.
func TestModuleStandsWhereItWasRolledBackTo(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(4), nil)
	for _, value := range []string{"1", "2", "3"} {
		w.await("shop", w.put(module("shop", configMap(value))).GetRevision())
	}
	w.act(client.Word{Module: "shop", Verb: "rollback", Revision: 1})
	w.await("shop", 0)
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolledBack() && s.GetHealthy() == 1 })
	if at := w.revisions("shop")["a"]; at != 1 || s.GetSucceededRevision() != at || s.GetRevision() != 3 || s.GetUpdated() != 1 {
		t.Errorf("the cluster has r%d, and the module says: %v", at, s)
	}
	put := w.put(staged("shop", "4", &towlinev1.RolloutStrategy{OnFailure: "Rollback"}))
	ro := w.await("shop", put.GetRevision())
	if ro.GetFromRevision() != 1 || ro.GetStatus().GetState() != "RolledBack" || w.revisions("shop")["a"] != 1 {
		t.Errorf("from r%d, %s, the cluster has r%d", ro.GetFromRevision(), ro.GetStatus().GetState(), w.revisions("shop")["a"])
	}
}
