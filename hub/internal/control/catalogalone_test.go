package control

import (
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// alone has the catalog be put as one that is not followed.
func (w *watcher) alone(generation int64) {
	w.says(generation, false)
	w.leader.put(func(tx store.Writer) {
		rec, _, _ := store.Get[*storev1.CatalogRecord](tx, store.CatalogKey(w.ref))
		rec.Catalog.Spec.Source.Follow = nil
		tx.Put(store.CatalogKey(w.ref), rec)
	})
}

// resyncs has a person ask for a look.
func (w *watcher) resyncs() {
	w.catalogs.with(w.ref, func(l *cataloguing) {
		l.asks = append(l.asks, catalogAsk{record.Ask{By: "ana"}, false, make(chan catalogAnswer, 1)})
	})
}

// stands fails unless the catalog is so, and has applied a commit last.
func (w *watcher) stands(state, reason, commit string) {
	w.t.Helper()
	s, _ := w.CatalogSeen(w.ref)
	if got := s.GetStatus(); got.GetState() != state || got.GetReason() != reason || got.GetAppliedRef() != "main@sha1:"+commit {
		w.t.Errorf("it is %s %q of %s, want %s %q of %s: %v", got.GetState(), got.GetReason(), got.GetAppliedRef(), state, reason, commit, got.GetProblems())
	}
}

func (w *watcher) confirms() {
	w.leader.put(func(tx store.Writer) {
		h := catalogHold(tx, w.ref)
		tx.Put(store.ConfirmPrefix+h.GetId(), &storev1.ConfirmRecord{Digest: h.GetDigest()})
	})
}

// runs has a rollout of the module be in a state, which lets no other begin.
func (w *watcher) runs(state string) {
	w.leader.put(func(tx store.Writer) {
		tx.Put(store.ModuleKey(shop), moduleRecord())
		ro := rolloutRecord(1, state)
		ro.Rollout.Strategy = &towlinev1.RolloutStrategy{OnSupersede: "Reject"}
		tx.Put(store.RolloutKey(shop, 1), ro)
	})
}

// A catalog that is not followed is looked at by itself for what a person asked for. A server of its source that is behind then does not have it
// back at what was there before, for nobody looks after that: it is looked at until what was asked for is there again, or a person asks.
func TestCatalogThatIsNotFollowedGoesBackByAPersonAlone(t *testing.T) {
	later := catalog.Plan{Later: []catalog.Later{{Name: shop.Name, At: "shop.yaml:1", Reason: catalog.Running, Rollout: rolloutRecord(1, "").GetRollout().GetId()}}}
	for name, c := range map[string]struct {
		plan   catalog.Plan // of what was asked for
		reason string
		over   func(w *watcher)
	}{
		"what it waits for is over":   {later, string(catalog.Running), func(w *watcher) { w.runs("Succeeded") }},
		"what it leaves is needed":    {catalog.Plan{Refused: []string{"module x is needed"}}, catalog.ReasonNeeded, func(*watcher) {}},
		"what it deletes is released": {catalog.Plan{Waits: true, Goes: []catalog.Gone{{Name: "d", UID: "ud"}}}, catalog.ReasonPrunesMost, (*watcher).confirms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				w.alone(1)
				w.runs("Progressing")
				w.source.moves("1", 11)
				w.looks(time.Minute)
				w.stands(catalog.Applied, "", "1")

				w.source.moves("2", 12)
				w.writes.plan = c.plan
				w.resyncs()
				w.looks(time.Second)
				if s, _ := w.CatalogSeen(w.ref); s.GetStatus().GetReason() != c.reason {
					t.Fatalf("it is %v, want %s", s.GetStatus(), c.reason)
				}

				w.source.moves("1", 11)
				w.writes.plan = catalog.Plan{}
				c.over(w)
				if n := w.looks(2 * time.Hour); n < 8 || n > 24 {
					t.Errorf("%d looks in two hours", n)
				}
				w.stands(catalog.Failed, follow.ReasonGoesBack, "1")
				w.restarts()
				w.looks(time.Hour)
				w.stands(catalog.Failed, follow.ReasonGoesBack, "1")

				w.source.moves("2", 12)
				if c.reason == catalog.ReasonPrunesMost { // what was confirmed is done
					w.writes.plan = c.plan
				}
				w.looks(20 * time.Minute)
				w.stands(catalog.Applied, "", "2")
				w.source.moves("1", 11)
				w.writes.plan = catalog.Plan{}
				if n := w.looks(time.Hour); n != 0 {
					t.Errorf("%d looks at what is applied", n)
				}
				w.resyncs()
				w.looks(time.Minute)
				w.stands(catalog.Applied, "", "1")
			})
		})
	}
}

// What a person confirmed does not have the looks be made one after the other that a source which goes back is to be found by.
func TestConfirmBesideASourceThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.source.moves("1", 11)
		w.looks(time.Minute)
		w.source.moves("2", 12)
		w.looks(6 * time.Minute)
		w.source.moves("3", 13)
		w.writes.plan = catalog.Plan{Waits: true, Goes: []catalog.Gone{{Name: "d", UID: "ud"}}}
		w.looks(6 * time.Minute)
		w.source.moves("1", 11)
		w.writes.plan = catalog.Plan{}
		w.confirms()
		for range 4 {
			w.looks(time.Second)
		}
		w.stands(catalog.Failed, follow.ReasonGoesBack, "2")
	})
}

// A hub stops, or its store is away, when a part of what was there is put: what is looked at next is not an older state, though nothing was kept of
// that look.
func TestLookThatHasNotEndedHasTakenUpWhatItFound(t *testing.T) {
	for name, breaks := range map[string]func(w *watcher){
		"the hub stops": func(w *watcher) { w.stops(1) },
		"the store is away": func(w *watcher) {
			whole := w.o.Catalogs
			m := &midway{planned: planned{plan: w.writes.plan}, err: fleet.Errorf(fleet.ErrUnavailable, "no member answers")}
			m.read = func() *storev1.CatalogState { return nil }
			w.o.Catalogs = m
			w.looks(100 * time.Millisecond)
			w.o.Catalogs = whole
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				w.source.moves("1", 11)
				w.looks(time.Minute)
				w.source.moves("2", 12)
				w.writes.plan = catalog.Plan{Puts: []catalog.Put{{Name: "a"}, {Name: "b"}}}
				w.resyncs()
				breaks(w)
				w.source.moves("1", 11)
				w.looks(5 * time.Second)
				w.stands(catalog.Failed, follow.ReasonGoesBack, "1")
				w.source.moves("2", 12)
				w.looks(6 * time.Minute)
				w.stands(catalog.Applied, "", "2")
			})
		})
	}
}
