package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestClusterThatNeverConnected: nothing says of a cluster whose agent has never come that it went away and moves when it is back; what is said
// names the command that brings it.
func TestClusterThatNeverConnected(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	_, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "edge-113"})
	must(t, err)
	put := w.put(module("shop", configMap("1")))
	w.await("shop", put.GetRevision())
	cli := w.cli()
	for _, args := range [][]string{{"rollout", "status", "shop", "--watch=false"}, {"explain", "rollout", "shop"}} {
		out, err := cli("", args...)
		must(t, err)
		if !strings.Contains(out, "edge-113") || !strings.Contains(out, "towline cluster join edge-113 --reissue") || strings.Contains(out, "back") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	file := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: base}\nspec: {source: {inline: {files: {a.yaml: 'apiVersion: v1\n\nkind: ConfigMap\n\nmetadata: {name: x, namespace: default}'}}}, placement: {selector: {}}}\n"
	if out, err := cli(file, "diff", "-f", "-"); err != nil || !strings.Contains(out, "edge-113: not asked: no agent of it has ever connected") {
		t.Errorf("diff: %v\n%s", err, out)
	}
}

// TestAbortedRolloutPromisesNothing: who was passed by is not said to move, or to get a revision, when nothing moves any more.
func TestAbortedRolloutPromisesNothing(t *testing.T) {
	w := newWorld(t, true)
	_, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "edge-113", Labels: map[string]string{"ring": "canary"}})
	must(t, err)
	_, err = w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "rest"})
	must(t, err)
	shop := module("shop", configMap("1"))
	shop.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}}
	put := w.put(shop)
	w.untilRollout(put.GetRevision(), func(s *towlinev1.RolloutStatus) bool { return s.GetDeferred() == 1 })
	cli := w.cli()
	status := func() string {
		out, err := cli("", "rollout", "status", "shop", "--watch=false")
		must(t, err)
		return out
	}
	if out := status(); !strings.Contains(out, "moves when one has") {
		t.Errorf("before:\n%s", out)
	}
	_, err = cli("", "rollout", "abort", "shop")
	must(t, err)
	if out := status(); strings.Contains(out, "moves when") || !strings.Contains(out, "this rollout moves no cluster any more") {
		t.Errorf("aborted:\n%s", out)
	}
}
