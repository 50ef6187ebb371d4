package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// Another Kubernetes cluster took a name after the backup: in the restored store the name is of the one before. The new one is told nothing of that,
// whatever is accepted, until a person has it join again; then what was on its way out when the backup was made goes from nothing there.
func TestNameThatWasTakenAfterTheBackup(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.await("old", w.put(module("old", map[string]string{"a.yaml": strings.Replace(configMapText("1"), "web", "old", 1)})).GetRevision())
	w.leaves("b")
	w.delete("old", false)
	w.eventually(func() bool {
		rows := w.trackers(&towlinev1.ObjectFilter{Cluster: "b", Module: "old"})
		return len(rows) == 1 && rows[0].GetRemoving()
	})
	file := w.backup()
	rejoin := func() {
		got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "b", Reissue: true})
		must(t, err)
		w.redeems("b", got.GetToken(), "uid-of-another")
	}
	rejoin()
	w.renew("b") // the backup has none of the same second
	d := newDiary()
	w.connectWith("b", simagent.Options{Report: simagent.Ready, Took: d.took("old")})
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	had := w.agents["b"].Held()
	w.stopAll()
	w.restore(file)

	w.reconnect("a")
	w.stops["b"] = w.run(w.agents["b"])
	refused := func() bool {
		got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "b"})
		return err == nil && got.GetCluster().GetStatus().GetAttention().GetCode() == fleet.AttentionOtherCluster
	}
	w.eventually(refused)
	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.eventually(func() bool { return w.held("a", "shop").Revision == 1 })
	if now := w.agents["b"].Held(); !refused() || now.Digest != had.Digest {
		t.Errorf("it was told %v", now)
	}
	w.stops["b"]()
	rejoin()
	w.connectWith("b", simagent.Options{Report: simagent.Ready, Took: d.took("old")})
	w.eventually(func() bool { return w.held("b", "shop").Revision == 1 })
	w.gone("old")
	for _, told := range d.read() {
		if told != "nothing" {
			t.Errorf("it was told %q of what the one before was to remove", told)
		}
	}
}
