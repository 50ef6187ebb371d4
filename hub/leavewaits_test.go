package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestWaitToLeaveOutlivesAPut: clusters that wait for a person's confirm to lose a module wait on when the module is put again, whatever the
// put is about: by itself, it may take the module from too few of them to ask.
func TestWaitToLeaveOutlivesAPut(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"in": "yes"})
	}
	put := func(name, text string, p *towlinev1.Placement) int64 {
		m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\ndata: {t: " + text + "}\n"})
		m.Spec.Placement = p
		return w.put(m).GetRevision()
	}
	labelled := &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "yes"}}}
	// waits is over when exactly these are asked for, and fails where the module has left one meanwhile.
	waits := func(items ...string) {
		t.Helper()
		var asked []string
		w.eventually(func() bool {
			got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
			must(t, err)
			asked = nil
			for _, h := range got.GetHolds() {
				asked = append(asked, h.GetItems()...)
			}
			return slices.Equal(asked, items) || len(w.revisions("shop")) < 3
		})
		if n := len(w.revisions("shop")); n != 3 {
			t.Fatalf("the module is in %d clusters: it left one, and nobody was asked", n)
		}
	}
	confirms := func(n int64) {
		w.until("shop", n, func(r *towlinev1.Rollout) bool {
			return r.GetStatus().GetReason() == "Confirm" || r.GetStatus().GetState() == "Succeeded"
		})
	}
	w.await("shop", put("shop", "one", labelled))

	w.labelled("c", nil) // the last module there
	waits("c")
	w.await("base", put("base", "one", &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}))
	waits("c") // once asked for, though something stays there by now
	confirms(put("shop", "two", labelled))
	waits("c")

	put("shop", "two", &towlinev1.Placement{Clusters: []string{"a"}})
	waits("b", "c")
	confirms(put("shop", "two", &towlinev1.Placement{Clusters: []string{"a", "c"}}))
	waits("b")
}
