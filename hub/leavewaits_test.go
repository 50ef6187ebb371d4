package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
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

// TestWaitToLeaveOutlivesADamagedRollout: nobody knows any more for which clusters a rollout asked whose record is damaged, so that whoever is to
// leave by the next one waits for a person.
func TestWaitToLeaveOutlivesADamagedRollout(t *testing.T) {
	w := newMortalWorld(t)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"in": "yes"})
	}
	put := func(name string, labels map[string]string) int64 {
		m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"})
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: labels}}
		return w.put(m).GetRevision()
	}
	asked := func() []string {
		got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		if len(got.GetHolds()) != 1 {
			return nil
		}
		return got.GetHolds()[0].GetItems()
	}
	in := map[string]string{"in": "yes"}
	w.await("shop", put("shop", in))
	w.labelled("c", nil) // the last module there
	w.eventually(func() bool { return slices.Equal(asked(), []string{"c"}) })
	w.await("base", put("base", nil))
	w.damage(store.RolloutKey(fleet.ModuleRef{Project: "default", Name: "shop"}, 1))
	put("shop", in)
	w.eventually(func() bool {
		r, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"}) // of the damaged one at first
		s := r.GetRollout().GetStatus()
		return err == nil && r.GetRollout().GetNumber() == 2 && (s.GetReason() == "Confirm" || s.GetState() == "Succeeded")
	})
	if got := asked(); !slices.Equal(got, []string{"c"}) || len(w.revisions("shop")) != 3 {
		t.Errorf("the module is in %v, and a person is asked for %q", w.revisions("shop"), got)
	}
}
