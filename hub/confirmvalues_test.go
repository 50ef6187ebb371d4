package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestConfirmIsOfTheValuesOfThen: what a person let go was what the revision dropped with the values that the cluster had. When a
// label changes, and with it the names of the module's objects, another list is dropped, of which nobody was asked.
func TestConfirmIsOfTheValuesOfThen(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		out := simagent.Ready(s)
		if s.Revision == 2 && !s.PruneConfirmed && s.Values["ZONE"] == "one" {
			out.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "dropped"}, Version: "v1", Held: true}}
		}
		return out
	}, map[string]string{"zone": "one"})
	put := func(value string) {
		m := module("shop", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"in-${ZONE}\", namespace: default}\ndata: {a: \"" + value + "\"}\n"})
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
		w.await("shop", w.put(m).GetRevision())
	}
	put("1")
	put("2")
	w.confirm(w.awaitHold())
	w.eventually(func() bool { return w.held("a", "shop").PruneConfirmed })

	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: "a", Labels: map[string]string{"zone": "two"}}}})
	must(t, err)
	w.eventually(func() bool { return w.held("a", "shop").Values["ZONE"] == "two" })
	if w.held("a", "shop").PruneConfirmed {
		t.Error("what the old names leave behind counts as confirmed")
	}
}

// confirmedBeside is one whose second revision drops n, which a person has let go, and m, which waits for two; says is what its agent tells of m.
func confirmedBeside(t *testing.T, says func(st *fleet.SyncStatus, s fleet.Sync)) *world {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Module.Name != "one" || s.Revision != 2 {
			return st
		}
		if says(&st, s); !s.PruneConfirmed {
			st.Extras = append(st.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "n"}, Version: "v1", Held: true})
		}
		return st
	}})
	w.await("one", w.put(listing("one", "a", "m", "n")).GetRevision())
	w.put(waiting(listing("two", "b", "m")))
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	w.confirmList(1)
	w.eventually(func() bool { return w.held("c", "one").PruneConfirmed })
	return w
}

// TestConfirmIsOfTheHeirsOfThen: what waited for another module was on no list that a person was shown. When that does not take it after all,
// it goes by another word only.
func TestConfirmIsOfTheHeirsOfThen(t *testing.T) {
	w := confirmedBeside(t, func(st *fleet.SyncStatus, s fleet.Sync) {
		left(st, s.Heirs, !s.PruneConfirmed)
		for i := range st.Extras {
			st.Extras[i].Held = len(s.Heirs) == 0
		}
	})
	confirmed := func() bool { return w.held("c", "one").PruneConfirmed }
	w.eventually(func() bool {
		holds, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		return confirmed() && len(holds.GetHolds()) == 0
	})

	w.put(waiting(listing("two", "b")))
	w.awaitHeir("c", "one", "m", "")
	if confirmed() {
		t.Error("what waited for two counts as confirmed")
	}
	w.confirmList(2)
	w.eventually(confirmed)
}

// TestConfirmOutlivesWhatIsTaken: when the other module is assigned what waited for it, nothing goes that a person was not asked about.
func TestConfirmOutlivesWhatIsTaken(t *testing.T) {
	w := confirmedBeside(t, func(st *fleet.SyncStatus, s fleet.Sync) { left(st, s.Heirs, false) })
	maria, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
	must(t, err)
	_, err = w.as(maria.GetToken()).Steer(w.ctx, client.Word{Module: "two", Verb: "approve"})
	must(t, err)
	w.awaitHeir("c", "one", "m", "")
	if !w.held("c", "one").PruneConfirmed {
		t.Error("what two has taken is asked for once more")
	}
}
