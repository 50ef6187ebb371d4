package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestModuleThatComesForTheWiderPlacementIsNotToCome: a module leaves a cluster by its labels, and the one that these labels bring there comes only
// with an approval: the revision that stands has no place for the cluster.
func TestModuleThatComesForTheWiderPlacementIsNotToCome(t *testing.T) {
	w := newWorld(t, true)
	w.join("p", nil, map[string]string{"env": "prod"})
	w.join("x", nil, map[string]string{"env": "lab"})
	w.join("y", nil, map[string]string{"env": "lab"})
	w.join("z", nil, map[string]string{"env": "lab"})
	lab := listing("lab", "l")
	lab.Spec.Placement = placedBy("env", "lab")
	w.await("lab", w.put(lab).GetRevision())
	web := listing("web", "w")
	web.Spec.Placement = placedBy("env", "prod")
	w.await("web", w.put(web).GetRevision())
	web = listing("web", "w")
	web.Spec.Placement = placedBy("env", "prod", "edge")
	web.Spec.Rollout = approved()
	put := w.put(web)
	w.until("web", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	w.labelled("x", map[string]string{"env": "edge"})
	w.eventually(func() bool {
		list, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		return len(list.GetHolds()) > 0 || w.held("x", "lab").Revision == 0
	})
	if w.held("x", "lab").Revision == 0 {
		t.Error("it left before anybody had approved what comes")
	}
}

// placedBy is a placement by the values of a label.
func placedBy(key string, values ...string) *towlinev1.Placement {
	return &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchExpressions: []*towlinev1.LabelSelectorRequirement{{Key: key, Operator: "In", Values: values}}}}
}
