package hub_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// unchanged is an agent in whose cluster everything is as the sync says.
func unchanged(q *agentv1.Query) *agentv1.QueryResult {
	return &agentv1.QueryResult{Preview: &agentv1.Preview{Unchanged: q.GetSync().GetObjects()}}
}

func (w *world) joinAnswering(name string, answer func(*agentv1.Query) *agentv1.QueryResult, labels map[string]string) {
	w.t.Helper()
	w.enroll(name, labels)
	w.connectWith(name, simagent.Options{Answer: answer})
	w.awaitCluster(name, "Ready")
}

// diff is what the hub says of a put: the plan, and a line of each cluster, sorted.
func (w *world) diff(m *towlinev1.Module, clusters ...string) (plan *towlinev1.DiffPlan, lines []string) {
	w.t.Helper()
	st, err := w.Modules.DiffModule(w.ctx, &towlinev1.DiffModuleRequest{Module: m, Clusters: clusters})
	must(w.t, err)
	groups := map[int32]string{}
	for {
		part, err := st.Recv()
		if errors.Is(err, io.EOF) {
			slices.Sort(lines)
			return plan, lines
		}
		must(w.t, err)
		if p := part.GetPlan(); p != nil {
			plan = p
		}
		if g := part.GetGroup(); g != nil {
			groups[g.GetNumber()] = fmt.Sprintf("%d unchanged", g.GetUnchanged())
		}
		if c := part.GetCluster(); c != nil {
			line := c.GetCluster() + " " + groups[c.GetGroup()] + c.GetReason()
			if c.GetReason() == "Leaves" {
				line += fmt.Sprintf(" %d %v", c.GetRemoves(), c.GetKeeps())
			}
			lines = append(lines, line)
		}
	}
}

// TestDiffOfADeletedModule: an apply is refused while what a deleted module has is held; else it makes another one, when a cluster is rid of that. A
// diff, which asks the clusters what they have now, says so.
func TestDiffOfADeletedModule(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.connectWith("a", simagent.Options{Answer: unchanged, Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} }}) // it has begun, and is not done
	w.awaitCluster("a", "Ready")
	shop := module("shop", configMap("1"))
	w.await("shop", w.put(shop).GetRevision())
	towline := w.cli()
	file := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {source: {inline: {files: {a.yaml: 'apiVersion: v1\n\nkind: ConfigMap\n\nmetadata: {name: x, namespace: default}'}}}, placement: {selector: {}}}\n"
	held, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "a"})
	must(t, err)
	w.delete("shop", false)
	for _, command := range [][]string{{"diff", "-f", "-"}, {"rollout", "simulate", "-f", "-"}, {"apply", "-f", "-", "--dry-run=server"}} {
		if out, err := towline(file, command...); !strings.Contains(out, "module shop is being deleted, and held in cluster a") || (err == nil) != (command[0] == "rollout") {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	w.confirm(held.GetHold())
	w.eventually(func() bool {
		out, err := towline(file, "diff", "-f", "-")
		return err == nil && strings.Contains(out, "The module is being deleted: an apply makes another one of its name")
	})
	if out, err := towline(file, "rollout", "simulate", "-f", "-"); err != nil || !strings.HasPrefix(out, "Module shop is being deleted: an apply makes another one of its name") {
		t.Errorf("simulate: %v\n%s", err, out)
	}
	if out, err := towline("", "delete", "module", "shop", "--orphan", "--wait=false", "--yes"); err != nil ||
		!strings.Contains(out, "leaves its objects in 1 cluster; what was deleted before stays gone, and cluster a deletes on until it hears of this") {
		t.Errorf("delete --orphan: %v\n%s", err, out)
	}
	if out, err := towline("", "get", "modules"); err != nil || !strings.Contains(out, "Deleting: leaves 1 object in 1 cluster") {
		t.Errorf("get modules: %v\n%s", err, out)
	}
	w.eventually(func() bool {
		out, err := towline(file, "diff", "-f", "-")
		return err == nil && strings.Contains(out, "when all that this one has there is let go")
	})
}

// A diff tells which clusters lose the module by the put, and how many objects go there: that is the most that a put can do.
func TestDiffTellsWhoLosesTheModule(t *testing.T) {
	w := newWorld(t, true)
	for name, env := range map[string]string{"a": "dev", "b": "dev", "c": "prod"} {
		w.joinAnswering(name, unchanged, map[string]string{"env": env})
	}
	files := map[string]string{"a.yaml": configMap("1")["a.yaml"] + "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: default}}\n"}
	w.await("base", w.put(module("base", map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: base, namespace: default}}\n"})).GetRevision()) // the last module of a cluster goes after a confirm only
	w.await("shop", w.put(module("shop", files)).GetRevision())
	narrow := module("shop", files)
	narrow.Spec.Placement.Selector = &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}
	plan, got := w.diff(narrow)
	if want := []string{"a 2 unchanged", "b 2 unchanged", "c Leaves 1 [kind:\"PersistentVolumeClaim\" objects:1]"}; !slices.Equal(trimmed(got), want) || plan.GetSelected() != 2 || plan.GetTotal() != 3 {
		t.Errorf("%v: it says %q, want %q", plan, got, want)
	}
	if _, got := w.diff(narrow, "a"); !slices.Equal(got, []string{"a 2 unchanged"}) {
		t.Errorf("asked for a only it says %q", got)
	}
	if _, got := w.diff(narrow, "c"); len(got) != 1 || !strings.HasPrefix(got[0], "c Leaves") {
		t.Errorf("asked for c only it says %q", got)
	}
	external := module("shop", files)
	external.Spec.Placement, external.Spec.Rollout = narrow.GetSpec().GetPlacement(), &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	if _, got := w.diff(external); !slices.Equal(got, []string{"a 2 unchangedExternal", "b 2 unchangedExternal"}) {
		t.Errorf("of a module that another program assigns it says %q", got)
	}
	dry, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: narrow, DryRun: true})
	must(t, err)
	if dry.GetLeaving() != 1 {
		t.Errorf("a dry run of the put says that %d clusters lose it", dry.GetLeaving())
	}
	// And so it is.
	put := w.put(narrow)
	if put.GetLeaving() != 1 {
		t.Errorf("the put says that %d clusters lose it", put.GetLeaving())
	}
	w.await("shop", put.GetRevision())
	if held := w.agents["c"].Held(); len(held.Syncs) != 1 {
		t.Errorf("c holds %v", held.Syncs)
	}
}

// TestDiffTellsWhoIsNotReached: where a pin, a cordon or a hold keeps back what a put brings, or the put assigns nothing, the diff says so.
func TestDiffTellsWhoIsNotReached(t *testing.T) {
	w := newWorld(t, true)
	for _, name := range []string{"cordoned", "free", "held", "object", "pinned"} {
		w.joinAnswering(name, unchanged, nil)
	}
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	_, err := w.Rollouts.PinClusters(w.ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"pinned"}})
	must(t, err)
	w.cordon("cordoned", true)
	_, err = w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "held", Reason: "a look"})
	must(t, err)
	_, err = w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "object", Reason: "a look",
		Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "web"}})
	must(t, err)
	next := module("shop", configMap("2"))
	w.eventually(func() bool {
		_, got := w.diff(next)
		return slices.Equal(got, []string{"cordoned 1 unchangedCordoned", "free 1 unchanged", "held 1 unchangedHeld", "object 1 unchangedHeld", "pinned 1 unchangedPinned"})
	})
	next.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	if _, got := w.diff(next, "free", "held"); !slices.Equal(got, []string{"free 1 unchangedExternal", "held 1 unchangedExternal"}) {
		t.Errorf("of a module that another program assigns: %q", got)
	}
	// And so it is.
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if got := w.held("free", "shop").Revision; got != 2 {
		t.Errorf("free has r%d", got)
	}
	for _, name := range []string{"cordoned", "held", "object", "pinned"} {
		if got := w.held(name, "shop").Revision; got != 1 {
			t.Errorf("%s has r%d", name, got)
		}
	}
}

// TestDiffOfTheNameOfADeletedModule: what people pinned of a module that is being deleted keeps nothing back of the next one of its name.
func TestDiffOfTheNameOfADeletedModule(t *testing.T) {
	w := newWorld(t, true)
	for _, name := range []string{"away", "pinned"} {
		w.joinAnswering(name, unchanged, nil)
	}
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	_, err := w.Rollouts.PinClusters(w.ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"pinned"}})
	must(t, err)
	w.stops["away"]()
	w.awaitCluster("away", "Disconnected")
	_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	w.eventually(func() bool { return len(w.agents["pinned"].Held().Syncs) == 0 })
	if _, got := w.diff(module("shop", configMap("2")), "pinned"); !slices.Equal(got, []string{"pinned 1 unchanged"}) {
		t.Errorf("%q", got)
	}
	w.put(module("shop", configMap("2")))
	w.eventually(func() bool { return w.held("pinned", "shop").Generation != 0 })
}

// trimmed takes the blank away that some versions of the protobuf text have between fields.
func trimmed(lines []string) (out []string) {
	for _, l := range lines {
		out = append(out, strings.Join(strings.Fields(l), " "))
	}
	return out
}

// servedModule has a source whose content is value's now.
func servedModule(t *testing.T, value func() string) *towlinev1.Module {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write([]byte(configMap(value())["a.yaml"]))
	}))
	t.Cleanup(srv.Close)
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.yaml"}}
	return m
}

func (w *world) putPlan(m *towlinev1.Module, plan string) *towlinev1.PutModuleResponse {
	w.t.Helper()
	resp, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, Plan: plan})
	must(w.t, err)
	return resp
}

// A put that is bound to a plan runs that, though the spec is the one that is there already and only its source has changed. A diff
// says of such a spec that a put without the plan changes nothing.
func TestPlanOfAnotherSourceUnderTheSameSpecIsRun(t *testing.T) {
	w := newWorld(t, true)
	w.joinAnswering("a", unchanged, nil)
	var content atomic.Value
	content.Store("1")
	m := servedModule(t, func() string { return content.Load().(string) })
	first, _ := w.diff(m)
	if first.GetSameSpec() {
		t.Errorf("of a new module it says %v", first)
	}
	w.await("shop", w.put(m).GetRevision())
	if same, _ := w.diff(m); !same.GetSameSpec() || same.GetDigest() != first.GetDigest() {
		t.Errorf("of the same module it says %v, before %v", same, first)
	}
	if again := w.putPlan(m, first.GetDigest()); again.GetResult() != "unchanged" || again.GetRollout() != "" {
		t.Errorf("a put of what runs already: %v", again)
	}
	content.Store("2")
	if again := w.put(m); again.GetResult() != "unchanged" {
		t.Errorf("a put without a plan: %v", again)
	}
	second, _ := w.diff(m)
	if !second.GetSameSpec() || second.GetDigest() == first.GetDigest() {
		t.Errorf("of another source it says %v, before %v", second, first)
	}
	put := w.putPlan(m, second.GetDigest())
	if put.GetRollout() != "shop/2" {
		t.Fatalf("a put of the other source: %v", put)
	}
	if ro := w.await("shop", put.GetRevision()); ro.GetStatus().GetState() != "Succeeded" || ro.GetRevision() != 2 {
		t.Errorf("its rollout: %v", ro)
	}
	if again := w.putPlan(m, second.GetDigest()); again.GetResult() != "unchanged" || again.GetRollout() != "" {
		t.Errorf("put once more: %v", again)
	}
}

// While a put without a plan waits for its source, one that is bound to a plan takes its place, so that nothing else is run.
func TestPlanBindsAPutThatWaitsForItsSource(t *testing.T) {
	w := newWorld(t, true)
	w.joinAnswering("a", unchanged, nil)
	var fetched atomic.Int32
	asked, let := make(chan struct{}), make(chan struct{})
	m := servedModule(t, func() string {
		switch fetched.Add(1) {
		case 1: // of the diff
			return "1"
		case 2: // of the put without a plan
			close(asked)
			<-let
			return "2"
		}
		return "1"
	})
	plan, _ := w.diff(m)
	w.put(m)
	<-asked
	put := w.putPlan(m, plan.GetDigest())
	close(let)
	if put.GetRollout() != "shop/2" {
		t.Fatalf("the put of the plan: %v", put)
	}
	ro := w.await("shop", put.GetRevision())
	if ro.GetNumber() != 2 || ro.GetStatus().GetState() != "Succeeded" || ro.GetPlan() != plan.GetDigest() {
		t.Errorf("rollout: %v", ro)
	}
	if next, _ := w.diff(m); next.GetDigest() != plan.GetDigest() {
		t.Errorf("the source is another one: %v", next)
	}
	rev, err := w.Modules.ListRevisions(w.ctx, &towlinev1.ListRevisionsRequest{Module: "shop"})
	must(t, err)
	if len(rev.GetRevisions()) != 1 {
		t.Errorf("revisions: %v", rev.GetRevisions())
	}
}

// A retry of a put that was bound to a plan is bound to it, too: it does not run what nobody has looked at.
func TestRetryIsOfThePlan(t *testing.T) {
	w := newWorld(t, true)
	w.joinAnswering("a", unchanged, nil)
	var fetched atomic.Int32
	m := servedModule(t, func() string {
		if fetched.Add(1) <= 2 { // of the diff, and of the look before the put
			return "1"
		}
		return "2"
	})
	plan, _ := w.diff(m)
	ro := w.await("shop", w.putPlan(m, plan.GetDigest()).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Failed" || s.GetReason() != "SourceFailed" {
		t.Fatalf("rollout: %v", s)
	}
	got, err := w.Rollouts.RetryRollout(w.ctx, &towlinev1.RetryRolloutRequest{Module: "shop"})
	must(t, err)
	ro = w.await("shop", got.GetAnswer().GetRevision())
	if s := ro.GetStatus(); ro.GetNumber() != 2 || s.GetState() != "Failed" || !strings.Contains(s.GetFacts().GetDetail(), record.OtherPlan) {
		t.Errorf("the retry: %v", ro)
	}
	// Who puts it without a plan takes what there is.
	if ro = w.await("shop", w.put(m).GetRevision()); ro.GetNumber() != 3 || ro.GetStatus().GetState() != "Succeeded" {
		t.Errorf("the put without a plan: %v", ro)
	}
}

// Diffs that are asked for at once are each answered with what is theirs.
func TestDiffsAtOnce(t *testing.T) {
	w := newWorld(t, true)
	for _, name := range []string{"a", "b"} {
		w.joinAnswering(name, unchanged, nil)
	}
	var all sync.WaitGroup
	for n := 1; n <= 8; n++ {
		all.Go(func() {
			files := map[string]string{}
			for i := range n {
				files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: n%d, namespace: default}}\n", i)
			}
			said := fmt.Sprintf("%d unchanged", n)
			if plan, got := w.diff(module("shop", files)); !slices.Equal(got, []string{"a " + said, "b " + said}) || int(plan.GetObjects()) != n {
				t.Errorf("of %d objects: %v, %q", n, plan, got)
			}
		})
	}
	all.Wait()
}
