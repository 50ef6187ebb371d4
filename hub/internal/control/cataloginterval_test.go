package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// planned writes what it is told to plan, and for a catalog nothing else.
type planned struct {
	plan    catalog.Plan
	trouble int // how many plans come to nothing
}

func (m *planned) PlanCatalog(context.Context, record.CatalogLook) (catalog.Plan, error) {
	if m.trouble--; m.trouble >= 0 {
		return catalog.Plan{}, fleet.Errorf(fleet.ErrUnavailable, "no member answers")
	}
	return m.plan, nil
}

func (m *planned) ApplyCatalog(context.Context, record.CatalogLook, catalog.Plan) (record.CatalogDone, error) {
	return record.CatalogDone{}, nil
}

func (m *planned) DropCatalog(context.Context, record.CatalogLook) error { return nil }

// watcher is a leader with a catalog that follows a branch.
type watcher struct {
	*leader
	t      *testing.T
	ref    fleet.ModuleRef
	source *branch
	writes planned
}

func newWatcher(t *testing.T) *watcher {
	w := &watcher{leader: newLeader(t), t: t, ref: fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}}
	w.source = &branch{ref: "main@sha1:1", files: map[string]string{"shop.yaml": "{apiVersion: towline.dev/v1, kind: Module, metadata: {name: shop}, spec: {namespace: default, placement: {selector: {}}, source: {inline: {files: {a.yaml: a}}}}}"}}
	w.catalogHosts, w.o.Source, w.o.Catalogs = &origins{}, w.source, &w.writes
	w.restarts()
	w.says(1, false)
	return w
}

// restarts begins to lead anew, with nothing but what is stored.
func (w *watcher) restarts() {
	w.catalogs.end()
	w.catalogs.begin(time.Now())
	w.cataloguer = newRunner(1, w.runCatalog)
}

func (w *watcher) says(generation int64, suspend bool) {
	w.leader.put(func(tx store.Writer) {
		tx.Put(store.CatalogKey(w.ref), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: "Catalog",
			Metadata: &towlinev1.Metadata{Name: w.ref.Name, Project: w.ref.Project, Uid: "u", Generation: generation}, Spec: &towlinev1.CatalogSpec{Suspend: suspend,
				Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/team.git"}, Follow: &towlinev1.Follow{Interval: "5m"}}}}})
	})
}

// looks is how often the source was looked at in a time, in which the catalog was touched once.
func (w *watcher) looks(d time.Duration) int {
	w.t.Helper()
	before := len(w.source.asked)
	ctx, stop := context.WithTimeout(w.t.Context(), d)
	defer stop()
	w.cataloguer.add(store.CatalogKey(w.ref))
	w.cataloguer.loop(ctx)
	return len(w.source.asked) - before
}

func (w *watcher) state() string {
	s, _ := w.CatalogSeen(w.ref)
	return s.GetStatus().GetState()
}

// A catalog is looked at at its interval, also by a hub that begins to lead; while its source is away more and more rarely, and not at all while
// it is suspended.
func TestCatalogIsLookedAtAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		if n := w.looks(time.Hour); n < 11 || n > 14 || w.state() != catalog.Applied {
			t.Errorf("%d looks in an hour; it is %s", n, w.state())
		}
		w.restarts()
		if n := w.looks(time.Hour); n < 11 || n > 14 {
			t.Errorf("%d looks in the hour after a restart", n)
		}
		w.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		if n := w.looks(3 * time.Hour); n < 10 || n > 24 || w.state() != catalog.Failed {
			t.Errorf("%d looks in three hours at what is away; it is %s", n, w.state())
		}
		w.source.err = nil
		if n := w.looks(16 * time.Minute); n < 1 || w.state() != catalog.Applied {
			t.Errorf("back, and after %d looks it is %s", n, w.state())
		}
		w.says(2, true)
		if n := w.looks(time.Hour); n != 0 {
			t.Errorf("%d looks while it is suspended", n)
		}
		w.says(3, false)
		if n := w.looks(time.Second); n != 1 {
			t.Errorf("put anew, and %d looks", n)
		}
	})
}

// What a catalog waits for has it looked at when that is over, once, and not while the look comes to nothing: then it is at its interval.
func TestCatalogIsLookedAtWhenWhatItWaitsForIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.leader.put(func(tx store.Writer) {
			tx.Put(store.ModuleKey(shop), moduleRecord())
			ro := rolloutRecord(1, "Progressing")
			ro.Rollout.Strategy = &towlinev1.RolloutStrategy{OnSupersede: "Reject"}
			tx.Put(store.RolloutKey(shop, 1), ro)
		})
		w.writes.plan = catalog.Plan{Later: []catalog.Later{{Name: shop.Name, At: "shop.yaml:1", Reason: catalog.Running, Rollout: rolloutRecord(1, "").GetRollout().GetId()}}}
		if n := w.looks(time.Minute); n != 1 || w.state() != catalog.Waiting {
			t.Fatalf("%d looks; it is %s", n, w.state())
		}
		w.leader.put(func(tx store.Writer) { tx.Put(store.RolloutKey(shop, 1), rolloutRecord(1, "Succeeded")) })
		w.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		if n := w.looks(4 * time.Minute); n < 1 || n > 3 || w.state() != catalog.Failed {
			t.Errorf("over while the source is away: %d looks; it is %s", n, w.state())
		}
		w.source.err, w.writes.plan = nil, catalog.Plan{}
		if n := w.looks(10 * time.Minute); n < 1 || w.state() != catalog.Applied {
			t.Errorf("after %d looks it is %s", n, w.state())
		}
	})
}

// A call whose look comes to nothing for the hub's own trouble is not forgotten: a look is made for it before the interval is over.
func TestCallOfACatalogOutlastsTheHubsOwnTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		if n := w.looks(20 * time.Second); n != 1 {
			t.Fatalf("%d looks after a put", n)
		}
		w.writes.trouble = 2
		if err := w.CatalogCalled(w.ref); err != nil {
			t.Fatal(err)
		}
		if n := w.looks(time.Minute); n != 3 {
			t.Errorf("%d looks, of which two came to nothing", n)
		}
	})
}

// A call whose look finds the source away is not forgotten: a look is made for it before the interval is over.
func TestCallOfACatalogOutlastsAServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		if n := w.looks(20 * time.Second); n != 1 {
			t.Fatalf("%d looks after a put", n)
		}
		w.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		if err := w.CatalogCalled(w.ref); err != nil {
			t.Fatal(err)
		}
		if n := w.looks(5 * time.Second); n != 1 || w.state() != catalog.Failed {
			t.Fatalf("%d looks; it is %s", n, w.state())
		}
		w.source.err = nil
		if n := w.looks(20 * time.Second); n != 1 || w.state() != catalog.Applied {
			t.Errorf("%d looks; it is %s", n, w.state())
		}
	})
}
