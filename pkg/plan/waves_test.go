package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestWavesWaitForEachOther: a wave is begun when all before it are settled, and stays begun; what has no objects left to wait for begins all.
func TestWavesWaitForEachOther(t *testing.T) {
	job := UnsettledObject{ID: fleet.ObjectID{Group: "batch", Kind: "Job", Namespace: "shop", Name: "migrate"}, Turn: -5, Why: "Job.batch shop/migrate: BackoffLimitExceeded"}
	web := UnsettledObject{ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "shop", Name: "web"}, Turn: 0, Why: "0 of 1 ready"}
	ns := UnsettledObject{ID: fleet.ObjectID{Kind: "Namespace", Name: "shop"}, Turn: FirstTurn, Why: "Missing"}
	for name, tc := range map[string]struct {
		begun, now, waits Turn
		of                []UnsettledObject
		next              Turn
		says              string
	}{
		"nothing is there":     {NoTurn, FirstTurn, FirstTurn, []UnsettledObject{web, job, ns}, -5, "wave -5 waits until the one of namespaces and definitions is healthy: Namespace shop: Missing"},
		"the first fails":      {FirstTurn, -5, -5, []UnsettledObject{web, job}, 0, "wave 0 waits until wave -5 is healthy: Job.batch shop/migrate: BackoffLimitExceeded"},
		"the first is through": {-5, 0, 0, []UnsettledObject{web}, 7, "wave 7 waits until wave 0 is healthy: Deployment.apps shop/web: 0 of 1 ready"},
		"what is begun stays so, and what comes after it waits": {0, 0, -5, []UnsettledObject{job}, 7, "wave 7 waits until wave -5 is healthy: Job.batch shop/migrate: BackoffLimitExceeded"},
		"all are through": {0, EveryTurn, EveryTurn, nil, 0, ""},
	} {
		got := Advance(tc.begun, tc.of)
		if got.Begun != tc.now || got.Waits != tc.waits {
			t.Errorf("%s: begun %d, waits %d", name, got.Begun, got.Waits)
		}
		if tc.says != "" && got.Text(tc.next) != tc.says {
			t.Errorf("%s: %s", name, got.Text(tc.next))
		}
	}
	many := Advance(NoTurn, []UnsettledObject{web, {ID: fleet.ObjectID{Kind: "Pod", Name: "b"}, Why: "x"}, {ID: fleet.ObjectID{Kind: "Pod", Name: "a"}, Why: "y"}})
	if want := "wave 1 waits until wave 0 is healthy: 1 more, and Deployment.apps shop/web: 0 of 1 ready; Pod a: y"; many.Text(1) != want {
		t.Error(many.Text(1))
	}
	if TurnOf(fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "x"}, 9) != FirstTurn || TurnOf(web.ID, -3) != -3 {
		t.Error("definitions come first, and all else in its wave")
	}
}
