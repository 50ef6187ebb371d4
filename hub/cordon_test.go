package hub_test

import (
	"maps"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestFileOfAClusterKeepsTheLabelsOfOthers: a person labels a cluster, and whoever keeps its file applies that again. The module that the
// label has there stays; what the file said itself goes when it says it no more.
func TestFileOfAClusterKeepsTheLabelsOfOthers(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, map[string]string{"env": "dev"})
	w.everywhere()
	towline := w.cli()
	const file = "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c, labels: {LABELS}, annotations: {note: x}}\n"
	apply := func(labels, says string) {
		t.Helper()
		out, err := towline(strings.Replace(file, "LABELS", labels, 1), "apply", "-f", "-")
		if err != nil || !strings.Contains(out, says) {
			t.Fatalf("%v\n%swant one that says %q", err, out, says)
		}
	}
	has := func(want map[string]string) {
		t.Helper()
		got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "c"})
		must(t, err)
		if labels := got.GetCluster().GetMetadata().GetLabels(); !maps.Equal(labels, want) {
			t.Errorf("labels %v, want %v", labels, want)
		}
	}
	apply("region: eu, ring: canary", "configured")
	_, err := towline("", "cluster", "label", "c", "shop=yes", "--yes")
	must(t, err)
	shop := module("shop", configMap("1"))
	shop.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"shop": "yes"}}}
	w.await("shop", w.put(shop).GetRevision())
	apply("region: eu, ring: canary", "unchanged")
	has(map[string]string{"env": "dev", "region": "eu", "ring": "canary", "shop": "yes"})
	out, err := towline(strings.Replace(file, "LABELS", "region: us", 1), "apply", "-f", "-", "--dry-run=server")
	if err != nil || strings.Contains(out, "leaves") {
		t.Errorf("%v\n%s", err, out)
	}
	apply("region: us", "configured")
	has(map[string]string{"env": "dev", "region": "us", "shop": "yes"})
	apply("region: us, shop: 'yes'", "") // the file says it from now on
	apply("region: us", "leaves shop")
	has(map[string]string{"env": "dev", "region": "us"})
}

// TestFileOfAClusterDoesNotUncordonIt: a person cordons a cluster, and whoever keeps its file applies that again. What the file does not say
// stays as it is.
func TestFileOfAClusterDoesNotUncordonIt(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	towline := w.cli()
	const file = "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c, labels: {env: LABEL}}\n"
	apply := func(text, says string) {
		t.Helper()
		out, err := towline(text, "apply", "-f", "-")
		if err != nil || !strings.Contains(out, says) {
			t.Fatalf("%v\n%swant one that says %q", err, out, says)
		}
	}
	is := func(cordoned bool, taints int) {
		t.Helper()
		got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "c"})
		must(t, err)
		if s := got.GetCluster().GetSpec(); s.GetCordoned() != cordoned || len(s.GetTaints()) != taints {
			t.Errorf("cordoned %t, %d taints; want %t, %d", s.GetCordoned(), len(s.GetTaints()), cordoned, taints)
		}
	}
	apply(strings.Replace(file, "LABEL", "dev", 1)+"spec: {taints: [{key: edge}]}\n", "configured")
	_, err := towline("", "cluster", "cordon", "c")
	must(t, err)
	is(true, 1)
	apply(strings.Replace(file, "LABEL", "dev", 1)+"spec: {taints: [{key: edge}]}\n", "unchanged")
	is(true, 1)
	apply(strings.Replace(file, "LABEL", "test", 1), "configured") // without a spec
	is(true, 1)
	apply(strings.Replace(file, "LABEL", "test", 1)+"spec: {taints: []}\n", "configured")
	is(true, 0)
	apply(strings.Replace(file, "LABEL", "test", 1)+"spec: {cordoned: false}\n", "configured")
	is(false, 0)
	apply(strings.Replace(file, "LABEL", "test", 1)+"spec: {cordoned: false}\n", "unchanged")
	_, err = towline("", "cluster", "cordon", "c")
	must(t, err)
	_, err = towline("", "cluster", "uncordon", "c")
	must(t, err)
	is(false, 0)
}

// TestFileOfAClusterSaysWhatItsTaintsKeepAway: a file that says nothing of taints leaves them as they are, so that no module comes which does
// not tolerate them, and none is said to.
func TestFileOfAClusterSaysWhatItsTaintsKeepAway(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	towline := w.cli()
	const file = "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c, labels: {env: LABEL}}\n"
	_, err := towline(strings.Replace(file, "LABEL", "dev", 1)+"spec: {taints: [{key: edge}]}\n", "apply", "-f", "-")
	must(t, err)
	shop := module("shop", configMap("1"))
	shop.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	w.put(shop)
	for _, dry := range []string{"server", "none"} {
		out, err := towline(strings.Replace(file, "LABEL", "prod", 1), "apply", "-f", "-", "--dry-run="+dry)
		if err != nil || strings.Contains(out, "enters") {
			t.Errorf("dry-run=%s: %v\n%s: shop does not come, for the taint keeps it away", dry, err, out)
		}
	}
	got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "c"})
	must(t, err)
	if len(got.GetCluster().GetSpec().GetTaints()) != 1 {
		t.Errorf("taints %v", got.GetCluster().GetSpec().GetTaints())
	}
	out, err := towline(strings.Replace(file, "LABEL", "prod", 1)+"spec: {taints: []}\n", "apply", "-f", "-")
	if err != nil || !strings.Contains(out, "enters shop") {
		t.Errorf("%v\n%s", err, out)
	}
}
