package hub_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// folders are modules of one branch, each of a folder of its own, and what the agent of cluster c was told that lets go m to nobody.
type folders struct {
	*world
	repo *sourcetest.Repo
	url  string
	down atomic.Bool // the server answers that it cannot now
	back atomic.Bool // one goes back to its first revision, and lets k go
	slow atomic.Bool // the agent is at a removal, and tells nothing of it yet
	mu   sync.Mutex
	lost []fleet.Assemblage
}

// newFolders is a world in which one has m, and two is there without it.
func newFolders(t *testing.T, follow bool) *folders {
	f := &folders{world: newWorld(t, true), repo: sourcetest.NewRepo(t)}
	f.push("a m", "b")
	serve := f.repo.Handler()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.down.Load() {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	f.enroll("c", nil)
	key := func(name string) uint64 {
		return assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: name})
	}
	remove := func(dead fleet.Tombstone) fleet.SyncStatus {
		if f.slow.Load() {
			return fleet.SyncStatus{}
		}
		return removedButKept(dead)
	}
	f.connectWith("c", simagent.Options{Remove: remove, Took: func(a fleet.Assemblage) {
		at := func(name string) *fleet.Sync {
			i := slices.IndexFunc(a.Syncs, func(s fleet.Sync) bool { return s.Module.Name == name })
			if i < 0 {
				return nil
			}
			return &a.Syncs[i]
		}
		one, two := at("one"), at("two")
		if two != nil && two.Revision >= 2 {
			return
		}
		var heirs []fleet.Heir
		dropped := key("m")
		gone := slices.IndexFunc(a.Tombstones, func(d fleet.Tombstone) bool { return d.Module.Name == "one" })
		switch {
		case gone >= 0:
			heirs = a.Tombstones[gone].Heirs
		case one != nil && one.Revision == 2 && one.Objects == 1: // which alone does not list m
			heirs = one.Heirs
		case one != nil && one.Revision == 1 && f.back.Load():
			heirs, dropped = one.Heirs, key("k")
		default:
			return
		}
		if !slices.ContainsFunc(heirs, func(h fleet.Heir) bool { return h.Unknown || slices.Contains(h.Keys, dropped) }) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lost = append(f.lost, a)
		}
	}})
	for _, name := range []string{"one", "two"} {
		m := following(name, srv.URL)
		m.Spec.Source.Git.Path = name
		if !follow {
			m.Spec.Source.Follow = nil
		}
		f.await(name, f.put(m).GetRevision())
	}
	return f
}

// push has the folders list the objects that are named; "broken" is none.
func (f *folders) push(one, two string) { f.pushAll(map[string]string{"one": one, "two": two}) }

// pushAll does so for any folders.
func (f *folders) pushAll(all map[string]string) {
	files := map[string]any{}
	for folder, names := range all {
		for _, name := range strings.Fields(names) {
			files[folder+"/"+name+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"
			if name == "broken" {
				files[folder+"/broken.yaml"] = "kind: ConfigMap"
			}
		}
	}
	f.repo.Branch("main", files)
}

func (f *folders) at(name string, revision int64) {
	f.t.Helper()
	f.awaitTracker(name, "c", "moved", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == revision && tr.GetReady() })
}

func (f *folders) lostNothing() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lost) > 0 {
		f.t.Errorf("m is let go to nobody: %+v", f.lost[0])
	}
}

// TestPushThatMovesAFileBetweenFolders: one push moves a file from the folder of one module to that of another, and the first is looked at
// alone: the other is looked at with it, and they begin together.
func TestPushThatMovesAFileBetweenFolders(t *testing.T) {
	f := newFolders(t, true)
	f.push("a", "b m")
	came, err := f.resync("one")
	must(t, err)
	if came.GetRollout() != "one/2" {
		t.Fatalf("%v", came)
	}
	f.at("one", 2)
	f.at("two", 2)
	f.lostNothing()
	f.awaitHeir("c", "one", "m", "")
}

// TestResyncOfSeveral: modules that follow nothing begin together when they are asked for together, and none does if one cannot.
func TestResyncOfSeveral(t *testing.T) {
	f := newFolders(t, false)
	ask := func(name, with string) (*towlinev1.ResyncModuleResponse, error) {
		return f.Modules.ResyncModule(f.ctx, &towlinev1.ResyncModuleRequest{Name: name, With: []string{with}})
	}
	f.push("a", "b broken")
	for name, with := range map[string]string{"one": "two", "two": "one"} {
		if _, err := ask(name, with); err == nil || !strings.Contains(err.Error(), "broken.yaml") {
			t.Errorf("%s with %s, of which one cannot be rendered: %v", name, with, err)
		}
	}
	f.push("a", "b m")
	came, err := ask("one", "two")
	must(t, err)
	if came.GetRollout() != "one/2" || !slices.Equal(came.GetOthers(), []string{"two/2"}) {
		t.Fatalf("%v", came)
	}
	f.at("one", 2)
	f.at("two", 2)
	f.lostNothing()
	if _, err := ask("one", "none"); err == nil {
		t.Error("with one that is not there")
	}
}

// TestWhoCannotTakeItUp: one module of a branch lets an object go, and another one, which follows the same branch, cannot take up the push
// that may list it there: the object stays until it can.
func TestWhoCannotTakeItUp(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*folders)
		two    string // what the push brings
		mend   func(*folders)
	}{
		"it cannot be rendered": {func(*folders) {}, "b m broken", func(f *folders) { f.push("a", "b m") }},
		"a person paused it": {
			func(f *folders) {
				f.push("a m", "b b2")
				m := following("two", f.url)
				m.Spec.Source.Git.Path = "two"
				m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Soak: "1h"}}}
				f.put(m)
				f.until("two", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Soak" })
				f.act(client.Word{Module: "two", Verb: "pause", Reason: "incident"})
			}, "b b2 m",
			func(f *folders) { f.act(client.Word{Module: "two", Verb: "resume"}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolders(t, true)
			tc.before(f)
			before := f.held("c", "two").Revision
			f.push("a", tc.two)
			came, err := f.resync("one")
			must(t, err)
			f.await("one", came.GetRevision())
			f.at("one", 2)
			kept := func(when string) {
				t.Helper()
				if s := f.held("c", "one"); !slices.ContainsFunc(s.Heirs, func(h fleet.Heir) bool { return h.Module.Name == "two" && h.Unknown }) {
					t.Fatalf("%s: m is let go to nobody: %+v", when, s)
				}
				f.lostNothing()
			}
			kept("it cannot take it up")
			f.down.Store(true)
			if _, err = f.resync("two"); err == nil {
				t.Error("the server is away, and nobody says so")
			}
			f.moduleIs("two", func(s *towlinev1.ModuleStatus) bool { return s.GetFollow().GetReason() == "Unavailable" })
			f.await("later", f.put(listing("later", "x")).GetRevision()) // whatever is let go by that was told before this
			kept("the server is away then")
			f.down.Store(false)
			tc.mend(f)
			_, err = f.resync("two")
			must(t, err)
			f.awaitTracker("two", "c", "moved", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() > before && tr.GetReady() })
			f.awaitHeir("c", "one", "m", "")
		})
	}
}

// TestPutOfOneTakesUpAPush: a push moves a file from the folder of one module to that of another, and a put of the first brings the push to
// it, which has nobody look at the other: the file stays until somebody has, which is soon.
func TestPutOfOneTakesUpAPush(t *testing.T) {
	for name, tc := range map[string]struct {
		two  string // what the push brings
		heir string
		goes int64 // the revision of the other then
	}{
		"it takes the file":  {"b m", "", 2},
		"it changes nothing": {"b", "", 1},
		"it cannot be had":   {"b m broken", "two", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolders(t, true)
			f.push("a", tc.two)
			m := following("one", f.url)
			m.Spec.Source.Git.Path = "one"
			m.Spec.Source.Follow.Interval = "1h"
			f.put(m)
			f.at("one", 2)
			f.moduleIs("two", func(s *towlinev1.ModuleStatus) bool {
				return s.GetRevision() == tc.goes && s.GetFollow().GetResolvedRef() == f.revision("one", 2).GetResolvedRef()
			})
			f.at("two", tc.goes)
			f.awaitHeir("c", "one", "m", tc.heir)
			if tc.goes == 2 {
				f.lostNothing()
				if by := f.until("two", 0, func(*towlinev1.Rollout) bool { return true }).GetStatus().GetStartedBy(); by != "follow" {
					t.Errorf("begun by %s", by)
				}
			}
		})
	}
}

// TestPutOfWhatCouldNotBeRendered: a look found that a module's source could not be rendered, and the mended one comes by a put: the
// module says nothing of what was wrong.
func TestPutOfWhatCouldNotBeRendered(t *testing.T) {
	f := newFolders(t, true)
	f.push("a", "b m broken")
	two := following("two", f.url)
	two.Spec.Source.Git.Path, two.Spec.Source.Follow.Interval = "two", "24h"
	if ro := f.await("two", f.put(two).GetRevision()); ro.GetStatus().GetReason() != "SourceFailed" {
		t.Fatalf("%v", ro)
	}
	if _, err := f.resync("two"); err == nil {
		t.Fatal("what cannot be rendered is taken")
	}
	came, err := f.resync("one")
	must(t, err)
	f.await("one", came.GetRevision())
	f.at("one", 2)
	f.awaitHeir("c", "one", "m", "two")
	f.push("a", "b m")
	f.put(two)
	f.at("two", 2)
	f.moduleIs("two", func(s *towlinev1.ModuleStatus) bool { return s.GetFollow().GetReason() == "" })
}

// oneBeginsWithoutTwo has two refused for what cannot be rendered, and one take what a push has for it.
func (f *folders) oneBeginsWithoutTwo() {
	f.t.Helper()
	if _, err := f.resync("two"); err == nil {
		f.t.Fatal("what cannot be rendered is taken")
	}
	one := following("one", f.url)
	one.Spec.Source.Git.Path, one.Spec.Source.Follow.Interval = "one", "1h"
	f.put(one)
	f.at("one", 2)
}

// TestAllWhoHaveNotLookedAreCalled: what one lets go waits for a module that cannot be rendered, and for another one behind that which only
// has to be looked at: that is.
func TestAllWhoHaveNotLookedAreCalled(t *testing.T) {
	f := newFolders(t, true)
	f.pushAll(map[string]string{"one": "a m", "two": "b", "zoo": "z"})
	zoo := following("zoo", f.url)
	zoo.Spec.Source.Git.Path = "zoo"
	f.await("zoo", f.put(zoo).GetRevision())
	f.pushAll(map[string]string{"one": "a", "two": "b broken", "zoo": "z m"})
	f.oneBeginsWithoutTwo()
	f.at("zoo", 2)
	f.lostNothing()
}
