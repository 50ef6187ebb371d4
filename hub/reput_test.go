package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// diary is what an agent was told to have of one module, in order, each once.
type diary struct {
	mu      sync.Mutex
	entries []string
	more    chan struct{}
}

func newDiary() *diary { return &diary{more: make(chan struct{}, 1)} }

func (d *diary) took(module string) func(fleet.Assemblage) {
	return func(a fleet.Assemblage) {
		entry := "nothing"
		for _, s := range a.Syncs {
			if s.Module.Name == module {
				entry = fmt.Sprintf("r%d", s.Revision)
			}
		}
		for _, t := range a.Tombstones {
			if t.Module.Name == module {
				entry = "removed: " + t.Policy
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if n := len(d.entries); n == 0 || d.entries[n-1] != entry {
			d.entries = append(d.entries, entry)
			select {
			case d.more <- struct{}{}:
			default:
			}
		}
	}
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.entries)
}

func (w *world) delete(name string, orphan bool) {
	w.t.Helper()
	_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: name, Orphan: orphan})
	must(w.t, err)
}

// away deletes shop, which had been in a and b, while b is away, and puts another module of the name.
func away(t *testing.T, orphan bool, change func(*towlinev1.Module)) (w *world, put *towlinev1.PutModuleResponse) {
	t.Helper()
	w = newWorld(t, true)
	w.join("a", nil, map[string]string{"ring": "canary"})
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	old := w.module("shop")
	w.leaves("b")
	w.delete("shop", orphan)
	m := module("shop", configMap("2"))
	if change != nil {
		change(m)
	}
	put = w.put(m)
	if put.GetResult() != "created" || put.GetModule().GetMetadata().GetUid() == old.GetMetadata().GetUid() || put.GetRollout() != "shop/2" {
		t.Fatalf("put of the name: %s, %s", put.GetResult(), put.GetRollout())
	}
	return w, put
}

// back connects b with what it held, and waits until it is as wanted.
func (w *world) back(d *diary, want ...string) {
	w.t.Helper()
	w.connectWith("b", simagent.Options{Took: d.took("shop")})
	for !slices.Equal(d.read(), want) {
		select {
		case <-d.more:
		case <-w.ctx.Done():
			w.t.Fatalf("b was told %q, want %q", d.read(), want)
		}
	}
}

// warned reports that a put came with a warning of a code.
func warned(put *towlinev1.PutModuleResponse, code string) bool {
	return slices.ContainsFunc(put.GetWarnings(), func(n *towlinev1.Note) bool { return n.GetCode() == code })
}

// A cluster that is away does not keep the name of a deleted module: a new one comes at once to the others, and the
// cluster first carries out the removal when it is back.
func TestDeletedNameIsFreeWhileAClusterIsAway(t *testing.T) {
	w, put := away(t, false, nil)
	if !warned(put, fleet.WarnDeletedFirst) {
		t.Errorf("warnings: %v", put.GetWarnings())
	}
	ro := w.await("shop", put.GetRevision())
	if s := ro.GetStatus(); ro.GetId() != "shop/2" || ro.GetFromRevision() != 0 || s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Fatalf("rollout: %v", ro)
	}
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetHealthy() == 1 && s.GetAway() == 1 && s.GetClusters() == 2 && s.GetRevision() == 2 && s.GetSucceededRevision() == 2
	})
	if a := w.agents["a"].Held(); len(a.Syncs) != 1 || a.Syncs[0].Revision != 2 || len(a.Tombstones) != 0 {
		t.Errorf("a holds %v", a)
	}
	d := newDiary()
	w.back(d, "removed: Delete", "r2")
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 2 && s.GetClusters() == 2 })
	if rows := w.objects(nil); len(rows) != 2 {
		t.Errorf("objects: %v", rows)
	}
	w.knowsOnlyTheNew()
}

// knowsOnlyTheNew checks that nothing of the deleted module is in the history of the new one.
func (w *world) knowsOnlyTheNew() {
	w.t.Helper()
	ros, err := w.Rollouts.ListRollouts(w.ctx, &towlinev1.ListRolloutsRequest{Module: "shop"})
	must(w.t, err)
	for _, ro := range ros.GetRollouts() {
		if ro.GetNumber() < 2 {
			w.t.Errorf("rollout %s of the deleted module", ro.GetId())
		}
	}
	revs, err := w.Modules.ListRevisions(w.ctx, &towlinev1.ListRevisionsRequest{Module: "shop"})
	must(w.t, err)
	for _, r := range revs.GetRevisions() {
		if r.GetNumber() < 2 {
			w.t.Errorf("revision r%d of the deleted module", r.GetNumber())
		}
	}
	_, err = w.Steer(w.ctx, client.Word{Module: "shop", Verb: "rollback", Revision: 1})
	if err == nil {
		w.t.Error("the new module goes back to a revision of the deleted one")
	}
	if _, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop", Number: 1}); status.Code(err) != codes.NotFound {
		w.t.Errorf("rollout shop/1: %v", err)
	}
}

// The order was to leave the objects: what the new module lists or not must not change that.
func TestOrphansOfADeletedModuleStayOrphans(t *testing.T) {
	w, put := away(t, true, nil)
	w.await("shop", put.GetRevision())
	d := newDiary()
	w.back(d, "removed: Orphan", "r2")
}

// A cluster that the new module does not go to only carries out the removal.
func TestDeletedModuleLeavesWhereTheNewOneDoesNotGo(t *testing.T) {
	w, put := away(t, false, func(m *towlinev1.Module) { m.Spec.Placement.Selector.MatchLabels = labels("canary") })
	w.await("shop", put.GetRevision())
	d := newDiary()
	w.back(d, "removed: Delete", "nothing")
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetClusters() == 1 && s.GetHealthy() == 1 })
}

// The new module is deleted, too, and a third one comes, all while the cluster is away.
func TestNameIsFreeAgainAndAgain(t *testing.T) {
	w, put := away(t, false, nil)
	w.await("shop", put.GetRevision())
	w.delete("shop", false)
	put = w.put(module("shop", configMap("3")))
	if put.GetResult() != "created" || put.GetRollout() != "shop/3" {
		t.Fatalf("put: %s, %s", put.GetResult(), put.GetRollout())
	}
	w.await("shop", put.GetRevision())
	d := newDiary()
	w.back(d, "removed: Delete", "r3")
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 2 })
	w.delete("shop", false)
	w.gone("shop")
	if put := w.put(module("shop", configMap("4"))); put.GetRollout() != "shop/1" {
		t.Errorf("of a name that nothing is left of the first rollout is %s", put.GetRollout())
	}
}

func (w *world) gone(name string) {
	w.t.Helper()
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: name})
	must(w.t, err)
	there := false
	for {
		m, err := st.Recv()
		must(w.t, err)
		there = there || m.GetType() == "ADDED"
		if m.GetType() == "DELETED" || m.GetType() == "SYNCED" && !there {
			return
		}
	}
}

// With every cluster connected a delete and a put right after it are one after the other everywhere.
func TestPutRightAfterADelete(t *testing.T) {
	w := newWorld(t, true)
	diaries := map[string]*diary{}
	for _, c := range []string{"a", "b"} {
		w.join(c, nil, nil)
		w.leaves(c)
		diaries[c] = newDiary()
		w.connectWith(c, simagent.Options{Took: diaries[c].took("shop")})
	}
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.delete("shop", false)
	put := w.put(module("shop", configMap("1")))
	ro := w.await("shop", put.GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 2 || s.GetDeferred() != 0 {
		t.Fatalf("rollout: %v", s)
	}
	for c, d := range diaries {
		got := slices.DeleteFunc(d.read(), func(s string) bool { return s == "nothing" })
		if want := []string{"r1", "removed: Delete", "r2"}; put.GetRollout() == "shop/2" && !slices.Equal(got, want) {
			t.Errorf("%s was told %q, want %q", c, got, want)
		}
	}
}

// What a person holds is not removed, and no other module takes its name meanwhile.
func TestHeldClusterKeepsTheName(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Reason: "a look"})
	must(t, err)
	w.delete("shop", false)
	for _, dry := range []bool{true, false} {
		_, err = w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("2")), DryRun: dry})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "held in cluster a") {
			t.Errorf("put, dry %t: %v", dry, err)
		}
	}
}

// A module that is deleted a second time in another way goes by the last word everywhere: where its removal was told
// already and is not done, and where the cluster is away.
func TestLastWordOfADeletionHolds(t *testing.T) {
	words := map[bool]string{false: "removed: Delete", true: "removed: Orphan"}
	for _, orphan := range []bool{true, false} {
		t.Run("then "+words[orphan], func(t *testing.T) {
			w := newWorld(t, true)
			told, away := newDiary(), newDiary()
			w.enroll("told", nil)
			w.connectWith("told", simagent.Options{Took: told.took("shop"), Remove: func(tomb fleet.Tombstone) fleet.SyncStatus {
				if words[orphan] != "removed: "+tomb.Policy {
					return fleet.SyncStatus{} // it has begun, and is not done
				}
				return simagent.Removed(tomb)
			}})
			w.join("b", nil, nil)
			w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
			w.leaves("b")
			w.delete("shop", !orphan)
			told.until(w, "r1", words[!orphan])
			w.delete("shop", orphan)
			told.until(w, "r1", words[!orphan], words[orphan])
			w.connectWith("b", simagent.Options{Took: away.took("shop")})
			away.until(w, words[orphan])
			w.gone("shop")
		})
	}
}

// until waits until an agent was told all of that, in this order, and nothing else of the module.
func (d *diary) until(w *world, want ...string) {
	w.t.Helper()
	w.eventually(func() bool {
		got := slices.DeleteFunc(d.read(), func(e string) bool { return e == "nothing" })
		return slices.Equal(got, want)
	})
}

// What a module of the name before left behind goes by that one's word, whatever becomes of the name.
func TestLastWordIsOfTheModuleItself(t *testing.T) {
	w, _ := away(t, true, nil)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetDeferred() == 1 })
	w.delete("shop", false)
	d := newDiary()
	w.connectWith("b", simagent.Options{Took: d.took("shop")})
	d.until(w, "removed: Orphan")
	w.gone("shop")
}

// The last word is passed on also where another program assigned a module whose name had been another one's.
func TestLastWordOfAnAssignedModuleOfATakenName(t *testing.T) {
	w, put := away(t, true, func(m *towlinev1.Module) {
		m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	})
	revision := w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetId() == put.GetRollout() && r.GetRevision() != 0 }).GetRevision()
	told := newDiary()
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Took: told.took("shop"), Remove: func(tomb fleet.Tombstone) fleet.SyncStatus {
		if tomb.Policy != fleet.DeleteOrphan {
			return fleet.SyncStatus{} // it has begun, and is not done
		}
		return simagent.Removed(tomb)
	}})
	_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "shop", Revision: revision, Clusters: []string{"c"}})
	must(t, err)
	told.until(w, fmt.Sprintf("r%d", revision))
	w.delete("shop", false)
	told.until(w, fmt.Sprintf("r%d", revision), "removed: Delete")
	w.delete("shop", true)
	told.until(w, fmt.Sprintf("r%d", revision), "removed: Delete", "removed: Orphan")
}

// TestSourceOfADeletedModuleIsNotOfTheNext: a module is deleted while its source is being fetched, and another one is put under
// the name, whose first rollout has the same number. It is what its own source says, whatever comes of the other.
func TestSourceOfADeletedModuleIsNotOfTheNext(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"found":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(manifests("a"))) },
		"not found": http.NotFound,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("c", nil, map[string]string{"zone": "x"})
			asked, served := make(chan struct{}), make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				close(asked)
				<-served
				answer(rw, r)
			}))
			t.Cleanup(srv.Close)
			old := module("shop", nil)
			old.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/all.yaml"}}
			w.put(old)
			<-asked
			w.delete("shop", false)
			w.gone("shop")
			if put := w.put(elsewhereSource(t, random("shop", "b", ""), nil)); put.GetRollout() != "shop/1" {
				t.Fatalf("the rollout of the next one is %s", put.GetRollout())
			}
			close(served)
			ro := w.until("shop", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetEnded() != nil })
			if s := ro.GetStatus(); s.GetState() != "Succeeded" {
				t.Fatalf("rollout: %v", s)
			}
			if o := w.objects(nil); len(o) != 1 || o[0].GetObject().GetName() != "b" {
				t.Errorf("objects: %v", o)
			}
		})
	}
}
